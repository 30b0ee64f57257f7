"""Points in time of measured rows: dates as text, or numbers of any unit."""

from datetime import UTC, datetime
from typing import Any

from paceline.analysis.facts import Clock

# A number without a unit is seconds since 1970 from this size on; of a thousand times more, milliseconds.
_SINCE_1970 = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e9, 1.0))


def point_in_time(value: Any, unit_s: float) -> tuple[float, Clock] | None:
    """Seconds and what they count from; `unit_s` is that of the field's name, 0 where it has none."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e19:
        return None
    number = float(value)
    if unit_s:
        seconds = number * unit_s
        return (seconds, Clock.UNIX) if seconds >= 1e9 else (seconds, Clock.START)
    for least, scale in _SINCE_1970:
        if number >= least:
            return number * scale, Clock.UNIX
    return number, Clock.START


def _text(value: str) -> tuple[float, Clock] | None:
    if not 8 <= len(value) <= 40:
        return None
    try:
        when = datetime.fromisoformat(value.strip().replace("/", "-").replace(",", "."))
    except ValueError:
        return None
    zoned = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return zoned.timestamp(), Clock.UNIX
