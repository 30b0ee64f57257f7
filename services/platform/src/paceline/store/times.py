"""Between the contracts' unix seconds and the tables' aware timestamps."""

from datetime import datetime, timezone

# Years 1970 to 9999: what both sides can hold.
UNIX_S_MAX = 253_402_300_799.0


def from_unix(unix_s: float) -> datetime:
    """UTC timestamp; ValueError outside 1970 to 9999 (also for NaN)."""
    if not 0 <= unix_s <= UNIX_S_MAX:
        raise ValueError(f"time {unix_s!r}, expected unix seconds between 0 and {UNIX_S_MAX:.0f}")
    return datetime.fromtimestamp(unix_s, tz=timezone.utc)


def to_unix(at: datetime) -> float:
    """Unix seconds."""
    return at.timestamp()
