"""Counts that RAS, counters or probes give: who does not answer, who is behind, who stopped first.

RAS counts launches on the host, per function; one snapshot with a spread of one is normal. Its text names
the minority, which may be the ranks ahead.
"""

from collections import defaultdict
from itertools import pairwise

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of, rank_roots, ranks_text
from paceline.analysis.facts import Counted, FlightDump, ProgressSeen, StackSeen, WorkTimeout
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)

_DRIFT_SNAPSHOTS = 3  # so many in which the gap only grows: a drift, not a moment
_STEPS_MIN = 2
_SPREAD_NORMAL = 1  # launches that ranks of a healthy job differ by in one snapshot


def unresponsive(case: Case) -> Finding | None:
    """A rank was asked by RAS and did not answer, or is declared dead."""
    gone = [fact for fact in case.of(Counted) if fact.missing]
    ranks = sorted({rank for fact in gone if (rank := case.rank_of(fact)) is not None})
    if not gone or (all(fact.missing == "no_data" for fact in gone) and _goes_on(case)):
        return None
    hosts = sorted({fact.speaker.host for fact in gone if fact.speaker.host})
    pids = sorted({fact.speaker.pid for fact in gone if fact.speaker.pid is not None})
    dead = any(fact.missing == "dead" for fact in gone)
    size = max(fact.group.size for fact in gone)
    if size and len(ranks) * 2 > size:
        return None
    where = f"process {pids[0]} on {hosts[0]}" if pids and hosts else ""
    roots = tuple(
        Blame(
            RootKind.RANK, rank=rank, node=hosts[0] if len(hosts) == 1 else "", why=where or "does not answer"
        )
        for rank in ranks
    ) or (Blame(RootKind.NODE if hosts else RootKind.NONE, node=hosts[0] if hosts else "", name=where),)
    who = ranks_text(ranks) if ranks else where
    return Finding(
        reason="unresponsive",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.PROCESS_EXITED if dead else SubReason.FROZEN_PROCESS,
        roots=roots,
        victims=(),
        communicator=next((fact.group.name for fact in gone if fact.group.name), ""),
        phase="operation unknown: the process does not answer",
        owner=Owner.HOST,
        action=Action(ActionKind.RESTART_PROCESS, where or who, "look at the process and its node first"),
        confidence=0.8,
        grounds=(
            Ground("missing", f"{who} {'is declared dead' if dead else 'does not answer'}", origins_of(gone)),
            Ground("ras_itself", "timeouts of RAS are about its own connections", (), supports=False),
        ),
        summary=f"{who} does not answer "
        f"({'dead: its process stopped or its node is lost' if dead else 'stopped or cut off'})"
        + (f", {where}" if where and ranks else ""),
    )


def drift(case: Case) -> Finding | None:
    """One rank falls behind the others by more and more launches."""
    for (group, function), snapshots in _snapshots(case).items():
        rows = [snapshots[number] for number in sorted(snapshots)]
        ranks = sorted(set.intersection(*(set(row) for row in rows))) if rows else []
        if len(rows) < _DRIFT_SNAPSHOTS or len(ranks) < 2:
            continue
        gaps = {rank: [max(row.values()) - row[rank] for row in rows] for rank in ranks}
        behind = [rank for rank, gap in gaps.items() if gap[-1] > _SPREAD_NORMAL and _grows(gap)]
        if not behind or len(behind) * 2 > len(ranks):
            continue
        lost = max(gaps[rank][-1] for rank in behind)
        facts = [f for f in case.of(Counted) if f.group.name == group and f.function == function]
        start = next((index for index, gap in enumerate(gaps[behind[0]]) if gap), 0)
        return Finding(
            reason="drift",
            verdict_class=VerdictClass.H1,
            sub_reason=SubReason.MISSING_ENTER,
            roots=rank_roots(behind, f"{lost} launches fewer, growing"),
            victims=tuple(rank for rank in ranks if rank not in behind),
            communicator=group,
            operation=Operation(group, group, function, 0),
            phase="every step, long before the hang",
            owner=Owner.USER_CODE,
            action=Action(ActionKind.FIX_CODE, ranks_text(behind), "a path that skips the collective"),
            confidence=0.85,
            grounds=(
                Ground(
                    "drift",
                    f"gap of {ranks_text(behind)} over {len(rows)} snapshots: "
                    f"{', '.join(map(str, gaps[behind[0]][:12]))}",
                    origins_of(facts),
                ),
                *(
                    Ground(
                        "late_symptom",
                        f"the timeout came later, in {t.work.function}",
                        (t.origin,),
                        supports=False,
                    )
                    for t in case.of(WorkTimeout)[:1]
                ),
            ),
            summary=f"{ranks_text(behind)} has skipped {lost} {function or 'collective'} calls on "
            f"{group or 'its group'}, "
            f"a little in each interval since snapshot {start + 1}; the hang is the late symptom",
        )
    return None


def behind_in_counts(case: Case) -> Finding | None:
    """A snapshot says who is behind, and something else says that it is stuck there."""
    for (group, function), snapshots in _snapshots(case).items():
        last = snapshots[max(snapshots)]
        if len(last) < 2 or len(set(last.values())) < 2:
            continue
        low = min(last.values())
        ranks = [rank for rank, count in last.items() if count == low]
        stays = len(snapshots) > 1 and all(row.get(ranks[0]) == low for row in snapshots.values())
        stuck = (
            stays
            or bool(case.of(WorkTimeout))
            or bool(case.of(FlightDump))
            or _spread(last) > _SPREAD_NORMAL
            or _never_ended(case, group, function, low)
        )
        if not stuck or len(ranks) * 2 > len(last):
            continue
        facts = [f for f in case.of(Counted) if f.group.name == group and f.function == function]
        stack = next((f for f in case.of(StackSeen) if case.rank_of(f) in ranks and f.frames), None)
        held = f"; it is in {stack.frames[0]}" if stack else ""
        return Finding(
            reason="behind_in_counts",
            verdict_class=VerdictClass.H1,
            sub_reason=SubReason.MISSING_ENTER,
            roots=rank_roots(ranks, f"launched {low} of {max(last.values())}"),
            victims=tuple(rank for rank in last if rank not in ranks),
            communicator=group,
            operation=Operation(group, group, function, low + 1),
            owner=Owner.USER_CODE,
            action=Action(ActionKind.COLLECT, ranks_text(ranks), "its stack and the kernel its GPU runs"),
            confidence=0.8 if stack else 0.7,
            grounds=(
                Ground(
                    "counts",
                    f"{ranks_text(ranks)} launched up to {low}, the others {max(last.values())}",
                    origins_of(facts),
                ),
                *((Ground("stack", " < ".join(stack.frames[:3]), (stack.origin,)),) if stack else ()),
            ),
            summary=f"{ranks_text(ranks)} did not launch {function or 'operation'} {low + 1}, in which "
            f"the others wait{held}",
        )
    return None


def one_apart(case: Case) -> Finding | None:
    """A spread of one in one snapshot: ask again before anybody is alarmed."""
    facts = _differing(case)
    spread = {fact.launched for fact in facts}
    if len(spread) < 2:
        return None
    low, high = min(n or 0 for n in spread), max(n or 0 for n in spread)
    snapshots = {fact.snapshot for fact in facts}
    last = max(snapshots)
    many = sum(fact.ranks_alike for fact in facts if fact.launched == low and fact.snapshot == last)
    by_snapshot = [{f.launched for f in facts if f.snapshot == one} for one in snapshots]
    stays = len(snapshots) > 1 and all(counts == spread for counts in by_snapshot)
    named = sorted({r for f in facts if f.launched == low and (r := case.rank_of(f)) is not None})
    ahead = sorted({r for f in facts if f.launched == high and (r := case.rank_of(f)) is not None})
    group = facts[0].group
    size = group.size
    behind = tuple(named) or tuple(sorted(set(range(size)) - set(ahead))) if size else tuple(named)
    return Finding(
        reason="one_apart",
        verdict_class=VerdictClass.INCONCLUSIVE
        if stays or high - low > _SPREAD_NORMAL
        else VerdictClass.NONE,
        sub_reason=SubReason.NONE,
        roots=(
            Blame(
                RootKind.NONE,
                ranks=behind,
                name=f"if it persists: the {many} ranks at {low}",
                why="one snapshot cannot tell a stall from a moment",
            ),
        ),
        victims=(),
        communicator=group.name,
        operation=Operation(group.name, group.name, facts[0].function, high, size=size),
        action=Action(ActionKind.WAIT, "", "ask RAS again in a minute and compare the counts"),
        confidence=0.7,
        grounds=(
            Ground(
                "spread",
                f"{many} ranks at {low}, {ranks_text(ahead) if ahead else 'others'} at {high}: the "
                "named ones are ahead",
                origins_of(facts),
            ),
        ),
        summary=f"No stall is proven: launches differ by {high - low} in one snapshot"
        + (f", and {ranks_text(ahead)} are ahead, not late" if ahead else ""),
        would_decide=("a second RAS answer a minute later: an alarm only if counts stand still",),
    )


def _differing(case: Case) -> list[Counted]:
    """Counts of the first function of a group that differ in its last snapshot, with earlier equal counts."""
    found: dict[tuple[str, str], list[Counted]] = defaultdict(list)
    for fact in case.of(Counted):
        if fact.launched is not None and fact.snapshot >= 0:
            found[fact.group.name, fact.function].append(fact)
    for facts in found.values():
        last = {fact.launched for fact in facts if fact.snapshot == max(f.snapshot for f in facts)}
        if len(last) > 1:
            return [fact for fact in facts if fact.launched in last]
    return []


def _snapshots(case: Case) -> dict[tuple[str, str], dict[int, dict[int, int]]]:
    """(group, function): snapshot: rank: launches."""
    found: dict[tuple[str, str], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    open_ones = {(fact.group.name, fact.function) for fact in case.of(Counted) if fact.given_up}
    for fact in case.of(Counted):
        rank = case.rank_of(fact)
        if fact.snapshot < 0 and (fact.group.name, fact.function) not in open_ones:
            continue  # of completed operations only: their files end where they were last flushed
        if rank is not None and fact.launched is not None and not fact.missing:
            row = found[fact.group.name, fact.function][fact.snapshot]
            row[rank] = max(row.get(rank, 0), fact.launched) if fact.snapshot < 0 else fact.launched
    _add_unnamed(case, found)
    return found


def _add_unnamed(case: Case, found: dict[tuple[str, str], dict[int, dict[int, int]]]) -> None:
    """RAS names the minority only: where one count is given without names, it is that of all others."""
    for fact in case.of(Counted):
        if fact.launched is None or fact.ranks_alike < 2 or case.rank_of(fact) is not None:
            continue
        row = found.get((fact.group.name, fact.function), {}).get(fact.snapshot, {})
        others = set(range(min(fact.group.size, 1 << 20))) - set(row)
        if row and len(others) == fact.ranks_alike:
            row.update(dict.fromkeys(others, fact.launched))


def _goes_on(case: Case) -> bool:
    """Steps, and nobody who waits in vain: RAS itself was late."""
    return len(case.of(ProgressSeen)) > _STEPS_MIN and not case.of(WorkTimeout)


def _never_ended(case: Case, group: str, function: str, low: int) -> bool:
    """Whether the ranks ahead have an operation that a profiler gave up waiting for."""
    ahead = [
        fact for fact in case.of(Counted)
        if fact.group.name == group and fact.function == function and (fact.launched or 0) > low
    ]  # fmt: skip
    return bool(ahead) and all(fact.given_up for fact in ahead)


def _grows(gap: list[int]) -> bool:
    return all(later >= earlier for earlier, later in pairwise(gap)) and gap[-1] > gap[0]


def _spread(row: dict[int, int]) -> int:
    return max(row.values()) - min(row.values())
