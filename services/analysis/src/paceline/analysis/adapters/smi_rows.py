"""Columns of `nvidia-smi --query-gpu` that say why clocks are low, as settings `clock_event_reason`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.analysis.facts import Fact, Line, SettingSeen

_REASONS = {
    "hw_slowdown": "HW Slowdown",
    "hw_thermal_slowdown": "HW Thermal Slowdown",
    "hw_power_brake_slowdown": "HW Power Brake Slowdown",
    "sw_thermal_slowdown": "SW Thermal Slowdown",
    "sw_power_cap": "SW Power Cap",
}
_BITS = {  # nvml.h, nvmlClocksEventReason*
    0x04: "SW Power Cap",
    0x08: "HW Slowdown",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
}
_FRONTS = ("clocks_event_reasons_", "clocks_throttle_reasons_", "clock_event_reasons_", "throttle_reason_")
_MASKS = (
    "clocks_event_reasons_active", "clocks_throttle_reasons_active", "throttle_reasons", "event_reasons",
    "dcgm_fi_dev_clock_throttle_reasons", "clock_throttle_reasons", "clocks_throttle_reasons",
)  # fmt: skip
_ACTIVE = ("active", "1", "true", "yes")


def clock_reasons(row: Mapping[str, Any], line: Line) -> Iterator[Fact]:
    """One setting for each reason that is active; `row` has bare names."""
    found = set()
    for name, value in row.items():
        for front in _FRONTS:
            reason = _REASONS.get(name.removeprefix(front)) if name.startswith(front) else None
            if reason and str(value).strip().lower() in _ACTIVE:
                found.add(reason)
        if name in _MASKS and (mask := _mask(value)) is not None:
            found |= {reason for bit, reason in _BITS.items() if mask & bit}
    if not found:
        return
    pci = next((str(row[name]) for name in ("pci_bus_id", "bus_id", "pci") if name in row), "")
    host = str(row.get("node") or row.get("host") or row.get("hostname") or line.speaker.host)
    rank, index = row.get("rank"), row.get("index", row.get("gpu"))
    speaker = replace(
        line.speaker,
        host=host,
        gpu=normal_pci(pci) if pci.count(":") == 2 else line.speaker.gpu,
        rank=rank if isinstance(rank, int) else line.speaker.rank,
        local_rank=index if isinstance(index, int) else line.speaker.local_rank,
    )
    for reason in sorted(found):
        yield SettingSeen(
            origin=line.origin, speaker=speaker, time_s=line.time_s, clock=line.clock, attempt=line.attempt,
            name="clock_event_reason", value=reason, text=f"{reason}: Active",
        )  # fmt: skip


def _mask(value: Any) -> int | None:
    """A bit mask as number or as `0x...`, None where it is words."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(str(value), 16) if str(value).startswith("0x") and len(str(value)) <= 20 else None
    except ValueError:
        return None
