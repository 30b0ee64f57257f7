"""Causes that no error names: adapters that differ between nodes, ACS, tools that write clocks, fabrics."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, main_operation, origins_of
from paceline.analysis.facts import Fact, Membership, NetworkFailure, NetworkKind, SampleRow, SettingSeen
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)

SPIN_SM_MIN = 90.0  # %: kernels run ...
SPIN_MEMORY_MAX = 5.0  # %: ... and move nothing
COLLAPSE = 0.25  # of the median bandwidth
COLLAPSES_MIN = 2
DELAYED = 1.5  # an operation that takes that much longer than the median
_ACS = "pcie_acs"


def device_missing(case: Case) -> Finding | None:
    """A node could not open an adapter that its peers use; nothing fails afterwards, transfers just wait."""
    failed = [f for f in case.of(NetworkFailure) if f.kind is NetworkKind.OPEN]
    if not failed:
        return None
    hosts = sorted({f.speaker.host for f in failed if f.speaker.host})
    device = failed[0].device
    spin = _spinning(case)
    ranks = tuple(sorted(rank for rank, place in case.places.items() if place.host in hosts and hosts))
    return Finding(
        reason="device_missing",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.MISSING_EXIT,
        roots=tuple(
            Blame(RootKind.NODE, node=host, name=device, why=f"cannot open {device}") for host in hosts
        )
        or (Blame(RootKind.CONFIGURATION, name=device, why="a node cannot open it"),),
        victims=tuple(rank for rank in case.ranks_named if rank not in ranks) if ranks else (),
        phase="first inter-node collective",
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CONFIGURATION,
            f"{', '.join(hosts)} {device}".strip(),
            "make the adapter visible there (driver, cgroup, device plugin); do not ignore mismatches "
            "of networks",
        ),
        confidence=0.8 if spin else 0.65,
        grounds=(
            Ground(
                "open", f"{device} could not be opened on {', '.join(hosts) or 'a node'}", origins_of(failed)
            ),
            *(
                (Ground("spin", "GPUs run kernels that move no memory: they wait", origins_of(spin)),)
                if spin
                else ()
            ),
        ),
        summary=f"{', '.join(hosts) or 'A node'} cannot open {device}, which its peers use: their "
        "channels have no "
        "other end" + (", and GPUs spin" if spin else ""),
    )


def acs_hang(case: Case) -> Finding | None:
    """PCIe ACS sends peer traffic through the root complex: the first peer-to-peer transfer never ends."""
    enabled = _acs(case)
    spin = _spinning(case)
    started = [fact for fact in case.of(Membership) if fact.complete]
    if not enabled or not (spin or started) or _bandwidth(case):
        return None
    communicator, operation = main_operation(case)
    return Finding(
        reason="acs_hang",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.ALL_RANKS_STUCK,
        roots=(
            Blame(
                RootKind.CONFIGURATION,
                name="PCIe ACS on the root ports",
                why="redirects peer-to-peer traffic",
            ),
        ),
        communicator=communicator,
        operation=operation,
        phase="first collective after init",
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CONFIGURATION, "PCIe ACS", "disable ACS (or the IOMMU's redirection) on all hosts"
        ),
        confidence=0.8 if spin else 0.6,
        grounds=(
            Ground(
                "acs",
                "ACS redirects requests: peer traffic goes through the root complex",
                origins_of(enabled),
            ),
            *((Ground("spin", "GPUs run kernels that move no memory", origins_of(spin)),) if spin else ()),
            *((Ground("init", "the communicators' init completed", origins_of(started)),) if started else ()),
        ),
        summary="PCIe ACS is enabled on the root ports: peer-to-peer transfers between GPUs hang; all "
        "ranks alike, "
        "no GPU is to blame",
    )


def acs_slow(case: Case) -> Finding | None:
    """ACS and a bandwidth far below that of the adapters, on all nodes alike."""
    enabled, bandwidth = _acs(case), _bandwidth(case)
    if not enabled or not bandwidth:
        return None
    rate = float(
        np.median([row.numbers.get("busbw", row.numbers.get("bandwidth", 0.0)) for row in bandwidth])
    )
    return Finding(
        reason="acs_slow",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SHARED_PATH,
        roots=(
            Blame(
                RootKind.CONFIGURATION, name="PCIe ACS on the hosts", why="GPU traffic takes the root complex"
            ),
        ),
        victims=(),
        phase="all_reduce bandwidth of large messages",
        owner=Owner.HOST,
        action=Action(ActionKind.FIX_CONFIGURATION, "PCIe ACS", "disable ACS on all hosts"),
        confidence=0.75,
        grounds=(
            Ground("acs", "ACS redirects requests", origins_of(enabled)),
            Ground("bandwidth", f"bus bandwidth {_rate(rate)}", origins_of(bandwidth)),
        ),
        summary=f"Collectives reach {_rate(rate)} only: PCIe ACS sends GPU traffic through the root "
        "complex on all "
        "hosts; no rank is slow, and host-memory tests of the network do not show it",
    )


def clock_writes(case: Case) -> Finding | None:
    """Operations are delayed exactly while a tool writes clocks or power limits."""
    actions = [row for row in case.of(SampleRow) if row.kind == "actions" and row.time_s is not None]
    timed = [row for row in case.of(SampleRow) if row.time_s is not None and _duration(row) is not None]
    if len(actions) < 2 or len(timed) < 4:
        return None
    begin, end = min(row.time_s or 0.0 for row in actions), max(row.time_s or 0.0 for row in actions)
    step = (end - begin) / max(len(actions) - 1, 1)
    during = [_duration(row) or 0.0 for row in timed if begin - step <= (row.time_s or 0.0) <= end + step]
    apart = [_duration(row) or 0.0 for row in timed if not begin - step <= (row.time_s or 0.0) <= end + step]
    if not during or not apart:
        return None
    usual = float(np.median(apart))
    inside = sum(value > DELAYED * usual for value in during) / len(during)
    beside = sum(value > DELAYED * usual for value in apart) / len(apart)
    if inside <= max(2 * beside, 0.05):
        return None
    name = Counter(row.words.get("action", "") for row in actions).most_common(1)[0][0]
    op = next((row.words["op"] for row in timed if "op" in row.words), "collective")
    return Finding(
        reason="clock_writes",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SHARED_PATH,
        roots=(Blame(RootKind.CONFIGURATION, name=f"{name} by an agent", why=f"every {step * 1e3:.0f} ms"),),
        victims=(),
        phase=f"collectives ({op}) while the agent acts",
        owner=Owner.HOST,
        action=Action(ActionKind.FIX_CONFIGURATION, name, "stop the agent's frequent writes"),
        confidence=0.75,
        grounds=(
            Ground("actions", f"{name}: {len(actions)} calls", origins_of(actions)),
            Ground(
                "delays",
                f"{inside:.0%} of operations are delayed during them, {beside:.0%} otherwise",
                origins_of(timed),
            ),
        ),
        summary=f"Collectives are delayed while an agent calls {name} every {step * 1e3:.0f} ms; it "
        "looks like network "
        "jitter and is made on the host",
    )


def bandwidth_collapse(case: Case) -> Finding | None:
    """Bandwidth falls to nearly nothing now and then, at sizes that were fast before."""
    rows = [row for row in case.of(SampleRow) if row.kind == "bandwidth"]
    rates = np.array([_busbw(row) or np.nan for row in rows])
    if np.isfinite(rates).sum() < 4:
        return None
    usual = float(np.nanmedian(rates[rates > COLLAPSE * np.nanmax(rates)]))
    low = np.flatnonzero(rates < COLLAPSE * usual)
    sizes = [row.numbers.get("size") for row in rows]
    again = [
        at
        for at in low.tolist()
        if any(sizes[other] == sizes[at] and other not in low for other in range(len(rows)))
    ]
    recovers = len(low) >= COLLAPSES_MIN and bool((np.diff(low) > 1).any() or low[-1] < len(rows) - 1)
    if not recovers or (not again and len(set(sizes)) > 1 and len(low) < COLLAPSES_MIN):
        return None
    counters = [row for row in case.of(SampleRow) if row.kind == "network"]
    return Finding(
        reason="bandwidth_collapse",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SHARED_PATH,
        roots=(
            Blame(
                RootKind.NONE,
                name="the fabric as a whole (lossless transport suspected)",
                why="no end differs",
            ),
        ),
        victims=(),
        phase="all_reduce bandwidth over time",
        owner=Owner.FABRIC,
        action=Action(
            ActionKind.NETWORK_TICKET,
            "",
            "flow control (PFC, ECN) end to end; pause and congestion counters of switches",
        ),
        confidence=0.65,
        grounds=(
            Ground(
                "collapse",
                f"{len(low)} of {len(rows)} measurements below {COLLAPSE:.0%} of {_rate(usual)}",
                origins_of(rows),
            ),
            *(
                (
                    Ground(
                        "counters",
                        "drop counters of the adapters do not decide it",
                        origins_of(counters),
                        supports=False,
                    ),
                )
                if counters
                else ()
            ),
        ),
        summary=f"Bandwidth collapses {len(low)} times of {len(rows)} and recovers: a fault of the "
        "fabric, not of a rank",
    )


def odd_one_ahead(case: Case) -> Finding | None:
    """One place has left the collective, the others spin in it; not always the same one."""
    rows = [row for row in case.of(SampleRow) if row.kind == "captures" and "at" in row.words]
    captures: dict[float, dict[str, str]] = defaultdict(dict)
    for row in rows:
        rank = case.rank_of(row)
        place = row.words.get("node") or (str(rank) if rank is not None else "")
        captures[row.numbers.get("capture", row.time_s or 0.0)][place] = row.words["at"]
    odd = [found for places in captures.values() if (found := _odd(places))]
    if len(odd) < 2 or len(odd) < 0.5 * len(captures):
        return None
    spin = _spinning(case)
    changes = len(set(odd)) > 1
    return Finding(
        reason="odd_one_ahead",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.MISSING_EXIT,
        roots=(
            Blame(
                RootKind.NONE,
                name="no fixed place: the odd one has its result, the others wait for theirs",
                why=f"odd one by capture: {', '.join(odd[:8])}",
            ),
        ),
        victims=(),
        phase="collective that ends on one rank only",
        owner=Owner.UNKNOWN,
        action=Action(
            ActionKind.COLLECT, "", "NCCL and driver versions, device-side state of the collective"
        ),
        confidence=0.65 if changes else 0.5,
        grounds=(
            Ground(
                "captures", f"{len(odd)} captures with one odd place: {', '.join(odd[:8])}", origins_of(rows)
            ),
            *(
                (
                    Ground(
                        "spin", "GPUs run kernels that move no memory and draw little power", origins_of(spin)
                    ),
                )
                if spin
                else ()
            ),
        ),
        summary="A collective ended on one rank only and the others still wait inside it; the odd one "
        "is ahead, not "
        "late" + (", and it is another one each time, so no node is to be replaced" if changes else ""),
    )


def stopped_first(case: Case) -> Finding | None:
    """A chain of sends and receives: the lowest counts, and a head of stream that is no communication."""
    heads = [
        row
        for row in case.of(SampleRow)
        if "head" in row.words and ("sends" in row.numbers or "receives" in row.numbers)
    ]
    counts: dict[int, tuple[float, SampleRow]] = {}
    for row in heads:
        rank = case.rank_of(row)
        if rank is not None:
            total = row.numbers.get("sends", 0.0) + row.numbers.get("receives", 0.0)
            counts[rank] = (total, row)
    if len(counts) < 3:
        return None
    lowest = min(counts, key=lambda rank: counts[rank][0])
    alone = sum(total == counts[lowest][0] for total, _ in counts.values()) == 1
    others = [rank for rank, (_, row) in counts.items() if not _is_communication(row)]
    if not alone or others != [lowest]:
        return None
    row = counts[lowest][1]
    return Finding(
        reason="stopped_first",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.DEVICE_QUEUE,
        roots=(
            Blame(
                RootKind.RANK, rank=lowest, node=row.speaker.host, why=f"stream stands in {row.words['head']}"
            ),
        ),
        victims=tuple(rank for rank in sorted(counts) if rank != lowest),
        communicator=row.words.get("comm", ""),
        phase="send/recv chain",
        owner=Owner.GPU,
        action=Action(
            ActionKind.REPLACE_NODE, f"rank {lowest}", "its GPU stopped without an error; no Xid need appear"
        ),
        confidence=0.8,
        grounds=(
            Ground(
                "counts",
                f"rank {lowest} has the lowest counts ({counts[lowest][0]:.0f}); they grow with the "
                "distance from it",
                (row.origin,),
            ),
            Ground(
                "head",
                f"its stream stands in {row.words['head']}, all others in communication",
                (row.origin,),
            ),
        ),
        summary=f"rank {lowest} stopped first (lowest send and receive counts, its stream stands in "
        f"{row.words['head']}); "
        f"the other {len(counts) - 1} wait in the chain",
    )


def spinning(case: Case) -> Finding | None:
    """Only telemetry, and it shows kernels that run and move nothing: a hang inside collectives."""
    spin = _spinning(case)
    if not spin:
        return None
    ranks = sorted({rank for fact in spin if (rank := case.rank_of(fact)) is not None})
    calm = sorted(set(case.ranks_named) - set(ranks))
    few = bool(calm) and len(calm) * 3 <= len(ranks)
    return Finding(
        reason="spinning",
        verdict_class=VerdictClass.H1 if few else VerdictClass.H3,
        sub_reason=SubReason.MISSING_ENTER if few else SubReason.ALL_RANKS_STUCK,
        roots=tuple(Blame(RootKind.RANK, rank=rank, why="does not spin") for rank in calm)
        if few
        else (Blame(RootKind.NONE, name="no rank differs", why="all spin alike"),),
        victims=tuple(ranks),
        phase="inside a collective (GPUs spin)",
        owner=Owner.UNKNOWN,
        action=Action(
            ActionKind.COLLECT, "", "stacks and flight recorder dumps of all ranks before they are killed"
        ),
        confidence=0.5,
        grounds=(Ground("spin", "GPUs are busy, move no memory and draw little power", origins_of(spin)),),
        summary="GPUs run kernels that move nothing: they wait inside a collective"
        + (f", save for {', '.join(f'rank {rank}' for rank in calm)}" if few else ""),
        would_decide=("flight recorder dumps or stacks of all ranks",),
    )


def _acs(case: Case) -> list[SettingSeen]:
    return [fact for fact in case.of(SettingSeen) if fact.name == _ACS and fact.value == "redirect"]


def _spinning(case: Case) -> Sequence[Fact]:
    """Telemetry of GPUs that run kernels and move no memory, where most of them do."""
    rows = [row for row in case.of(SampleRow) if "sm_util" in row.numbers and "mem_util" in row.numbers]
    spin = [
        row for row in rows
        if row.numbers["sm_util"] >= SPIN_SM_MIN and row.numbers["mem_util"] <= SPIN_MEMORY_MAX
    ]  # fmt: skip
    return spin if rows and len(spin) * 2 > len(rows) else []


def _bandwidth(case: Case) -> list[SampleRow]:
    """Rows of collectives' bandwidth, of tests or of monitors."""
    return [row for row in case.of(SampleRow) if _busbw(row) is not None]


def _busbw(row: SampleRow) -> float | None:
    """In GB/s."""
    for name in ("busbw_gbps", "average_busbw_gbps"):
        if name in row.numbers:
            return row.numbers[name]
    return row.numbers["busbw"] / 1e9 if "busbw" in row.numbers else None


def _duration(row: SampleRow) -> float | None:
    if row.kind not in ("operations", "steps"):
        return None
    return row.numbers.get("collective_s", row.numbers.get("duration_s"))


def _odd(places: dict[str, str]) -> str:
    """The one place that is elsewhere than all others, empty where there is none."""
    count = Counter(places.values())
    if len(places) < 3 or len(count) != 2 or min(count.values()) != 1:
        return ""
    rare = min(count, key=lambda at: count[at])
    return next(place for place, at in places.items() if at == rare)


def _is_communication(row: SampleRow) -> bool:
    head = row.words["head"].lower()
    return any(
        word in head
        for word in ("nccl", "rccl", "sendrecv", "allreduce", "all_reduce", "allgather", "broadcast")
    )


def _rate(gigabytes: float) -> str:
    return f"{gigabytes:.2f} GB/s"
