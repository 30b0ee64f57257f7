"""Slow for a reason that a machine says: a GPU that throttles, a pair of nodes slower than the others."""

from collections import Counter, defaultdict

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, origins_of
from paceline.analysis.facts import SampleRow, SettingSeen
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_SLOWDOWNS = (
    "HW Slowdown",
    "HW Thermal Slowdown",
    "HW Power Brake Slowdown",
    "SW Thermal Slowdown",
    "HW Power Braking",
)
PAIR_SLOW = 0.85  # of the median rate of all pairs
CLOCK_SLOW = 0.9  # of the median clock of all GPUs at the same load
HOT_C = 5.0  # degrees above the median
POWER_LOW = 0.85  # of the median power
_BUSY = 50.0  # % of utilisation: clocks of idle GPUs are low by design


def slowed_device(case: Case) -> Finding | None:
    """A GPU that says it slows itself down, or runs hot and slow; a software power cap says nothing."""
    if complaining(case):
        return None
    facts = [f for f in case.of(SettingSeen) if f.name == "clock_event_reason" and f.value in _SLOWDOWNS]
    devices = {(f.speaker.host, f.speaker.gpu): f for f in facts}
    said = ", ".join(sorted({fact.value for fact in facts}))
    origins = origins_of(facts)
    roots = tuple(
        Blame(RootKind.GPU, rank=case.rank_of(fact), node=host, gpu=gpu, why=fact.value)
        for (host, gpu), fact in list(devices.items())[:8]
    )
    if not roots:
        slow = _hot_and_slow(case)
        roots, origins = tuple(_of_row(case, row) for row in slow[:8]), origins_of(slow)
        said = "lower clock and higher temperature than the others at the same load"
    if not roots:
        return None
    who = "; ".join(_name(root) for root in roots)
    return Finding(
        reason="slowed_device",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.LATE_RANK,
        roots=roots,
        victims=(),
        phase="compute of every step",
        owner=Owner.GPU,
        action=Action(
            ActionKind.COLLECT, who, "cooling, power and clocks of that GPU; move the work away if it stays"
        ),
        confidence=0.75,
        grounds=(Ground("slowdown", f"{who}: {said}", origins),),
        summary=f"{who} is slowed down ({said}); the ranks that wait for it are healthy",
    )


def narrow_link(case: Case) -> Finding | None:
    """A busy GPU whose PCIe link runs at a lower generation or width than those of the others."""
    links: dict[tuple[str, str], tuple[float, float]] = {}
    rows: dict[tuple[str, str], SampleRow] = {}
    for row in case.of(SampleRow):
        width, generation = (row.numbers.get(f"pcie_link_{name}_current") for name in ("width", "gen"))
        if (width or generation) and row.numbers.get("sm_util", 100.0) >= _BUSY:
            key = row.speaker.host, row.speaker.gpu or row.words.get("gpu", "")
            links[key], rows[key] = (width or 0.0, generation or 0.0), row
    if len(links) < 3:
        return None
    usual = Counter(links.values()).most_common(1)[0][0]
    slow = [key for key, (width, generation) in links.items() if width < usual[0] or generation < usual[1]]
    if not slow or len(slow) * 4 > len(links):
        return None
    roots = tuple(_of_row(case, rows[key], "its PCIe link is narrow") for key in slow[:8])
    who = "; ".join(_name(root) for root in roots)
    return Finding(
        reason="narrow_link",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SLOW_LINK,
        roots=roots,
        victims=(),
        phase="transfers of the device (PCIe link)",
        owner=Owner.HOST,
        action=Action(ActionKind.COLLECT, who, "reset or reseat it; look for AER lines in the kernel log"),
        confidence=0.8,
        grounds=(Ground("link", f"{who}: width and generation below {usual}", origins_of(rows.values())),),
        summary=f"{who} has a PCIe link of lower width or generation than the other devices",
    )


def slow_pair(case: Case) -> Finding | None:
    """Rates of pairs: one pair far below the others is a path, all pairs of one end are that end."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    rows = [row for row in case.of(SampleRow) if row.kind == "pairs"]
    for row in rows:
        rate = next(
            (row.numbers[n] for n in ("busbw", "bandwidth", "algbw", "send_rate") if n in row.numbers), None
        )
        ends = _ends(case, row)
        if rate is not None and ends is not None:
            rates[ends].append(rate)
    if len(rates) < 3:
        return None
    middle = {ends: float(np.median(values)) for ends, values in rates.items()}
    usual = float(np.median(list(middle.values())))
    slow = [ends for ends, rate in middle.items() if rate < PAIR_SLOW * usual]
    if not slow or len(slow) * 2 > len(middle):
        return None
    shared = set.intersection(*(set(ends) for ends in slow))
    others = [ends for ends in middle if ends not in slow and shared & set(ends)]
    if len(slow) > 1 and len(shared) == 1 and not others:
        node = shared.pop()
        roots: tuple[Blame, ...] = (_end(node, RootKind.NODE),)
        what = f"all paths of {node}"
    else:
        roots = tuple(_link(*ends) for ends in slow[:8])
        what = ", ".join(f"{a} to {b}" for a, b in slow[:4])
    worst = min(middle[ends] for ends in slow)
    return Finding(
        reason="slow_pair",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SLOW_LINK,
        roots=roots,
        victims=(),
        phase="transfers between pairs (bandwidth)",
        owner=Owner.FABRIC,
        action=Action(ActionKind.NETWORK_TICKET, what, "the path between these ends: cable, switch, routing"),
        confidence=0.8,
        grounds=(Ground("pairs", f"{what}: {worst / usual:.0%} of the usual rate", origins_of(rows)),),
        summary=f"The path {what} reaches {worst / usual:.0%} of what the other pairs reach; no rank "
        "is slow by itself",
    )


def _hot_and_slow(case: Case) -> list[SampleRow]:
    """Of each device that runs at a lower clock than the others at the same load, its last row of clocks."""
    devices: dict[tuple[int | None, str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    last: dict[tuple[int | None, str, str], SampleRow] = {}
    for row in case.of(SampleRow):
        key = case.rank_of(row), row.speaker.host, row.words.get("gpu", "") or row.speaker.gpu
        for name in ("sm_clock_mhz", "temp_c", "power_w", "sm_util"):
            if name in row.numbers:
                devices[key][name].append(row.numbers[name])
        if "sm_clock_mhz" in row.numbers:
            last[key] = row
    busy = {key: found for key, found in devices.items() if np.median(found.get("sm_util", [100.0])) >= _BUSY}
    levels = {key: _levels(found) for key, found in busy.items() if "sm_clock_mhz" in found}
    if len(levels) < 3:
        return []
    usual = {
        name: float(np.median([level[name] for level in levels.values()]))
        for name in ("clock", "heat", "power")
    }
    slow = [
        key
        for key, level in levels.items()
        if level["clock"] < CLOCK_SLOW * usual["clock"]
        and (level["heat"] >= usual["heat"] + HOT_C or level["power"] < POWER_LOW * usual["power"])
    ]
    return [last[key] for key in slow] if len(slow) * 4 <= len(levels) else []


def _levels(found: dict[str, list[float]]) -> dict[str, float]:
    """Low clock, high temperature and low power of one device; a fault may begin in the middle."""
    return {
        "clock": float(np.percentile(found["sm_clock_mhz"], 25)),
        "heat": float(np.percentile(found.get("temp_c", [0.0]), 75)),
        "power": float(np.percentile(found.get("power_w", [0.0]), 25)),
    }


def _of_row(case: Case, row: SampleRow, why: str = "low clock, high temperature") -> Blame:
    gpu = row.speaker.gpu or row.words.get("gpu", "")
    rank = case.rank_of(row)
    kind = RootKind.RANK if rank is not None else RootKind.GPU
    return Blame(kind, rank=rank, node=row.speaker.host, gpu=gpu, why=why)


def _name(root: Blame) -> str:
    if root.rank is not None:
        return f"rank {root.rank}"
    return " ".join(part for part in (root.node, f"GPU {root.gpu}" if root.gpu else "a GPU") if part)


def _ends(case: Case, row: SampleRow) -> tuple[str, str] | None:
    numbers, words = row.numbers, row.words
    first = words.get("src") or (f"{numbers['src_rank']:.0f}" if "src_rank" in numbers else "")
    second = words.get("dst") or (f"{numbers['dst_rank']:.0f}" if "dst_rank" in numbers else "")
    if not second and "peer" in numbers:
        rank = case.rank_of(row)
        first, second = f"{rank}" if rank is not None else words.get("node", ""), f"{numbers['peer']:.0f}"
    return (first, second) if first and second else None


def _end(name: str, kind: RootKind) -> Blame:
    return (
        Blame(RootKind.RANK, rank=int(name)) if name.isdigit() and len(name) < 9 else Blame(kind, node=name)
    )


def _link(first: str, second: str) -> Blame:
    if first.isdigit() and second.isdigit() and len(first) < 9 and len(second) < 9:
        return Blame(
            RootKind.LINK, rank=int(first), peer_rank=int(second), name=f"rank {first} to rank {second}"
        )
    return Blame(RootKind.LINK, name=f"{first} to {second}")
