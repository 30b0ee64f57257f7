"""The finding about measured rows of steps and operations: words, owner and action for each reason.

Whether something is slow, and who or what is to blame, is decided in `diagnosis.slow_rows`.
"""

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, rank_roots, ranks_text
from paceline.analysis.diagnosis.slow_answer import SlowReason, SlowRows
from paceline.analysis.diagnosis.slow_rows import judge_rows
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

R = SlowReason
_FIX = ActionKind.FIX_CONFIGURATION
_TURNS = (R.ROTATING, R.COLLECTIONS)
_ALL_ALIKE = {
    R.INPUT_BOUND: "all ranks together: data loading (input bound)",
    R.STALL: "all ranks together: a stall before the collective",
    R.SLOWER_TOGETHER: "all ranks together: clocks, power, versions or configuration",
    R.TRANSFERS: "the fabric as a whole",
    R.BURSTS: "the fabric as a whole (bursts)",
}


def measured_rows(case: Case) -> Finding | None:
    """Slow steps or operations by who was late in each of them, None where the rows show nothing slow."""
    slow = judge_rows(case.facts, case.rank_of)
    if slow is None or not slow.is_slow:
        return None
    owner, action = _advice(slow)
    turns = slow.reason in _TURNS and len(slow.ranks) != 1
    return Finding(
        reason=f"rows_{slow.reason.value}",
        verdict_class=slow.verdict_class,
        sub_reason=_sub_reason(slow, turns),
        roots=_roots(case, slow, turns),
        victims=() if turns else slow.others,
        phase=_phase(slow),
        owner=owner,
        action=action,
        confidence=slow.confidence,
        grounds=(Ground("rows", slow.statement, slow.origins),)
        + ((Ground("rates", slow.ends.statement, slow.ends.origins),) if slow.ends else ()),
        summary=f"{slow.statement[:1].upper()}{slow.statement[1:]}",
    )


def _sub_reason(slow: SlowRows, turns: bool) -> SubReason:
    if turns:
        return SubReason.ROTATING_STRAGGLER
    if slow.verdict_class is VerdictClass.S2:
        return SubReason.SLOW_LINK if slow.ends else SubReason.SHARED_PATH
    return SubReason.LATE_RANK


def _roots(case: Case, slow: SlowRows, turns: bool) -> tuple[Blame, ...]:
    if slow.agent is not None:
        name = f"{slow.agent.action} by an agent"
        return (
            Blame(RootKind.CONFIGURATION, name=name, ranks=slow.agent.ranks, why="slow while it is called"),
        )
    if turns:
        name = "garbage collection" if slow.reason is R.COLLECTIONS else ""
        return (Blame(RootKind.ROTATING, name=name, ranks=slow.ranks, why="another one each time"),)
    if slow.ranks:
        hosts = {rank: case.places[rank].host for rank in slow.ranks if rank in case.places}
        return tuple(
            Blame(RootKind.RANK, rank=rank, node=hosts.get(rank, ""), why="works longest, waits least")
            for rank in slow.ranks
        )
    if slow.hosts:
        return tuple(Blame(RootKind.NODE, node=host, why="works longest, waits least") for host in slow.hosts)
    if slow.ends is not None and slow.verdict_class is VerdictClass.S2:
        return _ends(slow)
    return (Blame(RootKind.NONE, name=_ALL_ALIKE.get(slow.reason, ""), why="no rank stands out"),)


def _ends(slow: SlowRows) -> tuple[Blame, ...]:
    if slow.ends is None:
        return ()
    links = tuple(
        Blame(RootKind.LINK, rank=a, peer_rank=b, why="its rate fell")
        if isinstance(a, int) and isinstance(b, int)
        else Blame(RootKind.LINK, name=f"{a} to {b}", why="its rate fell")
        for a, b in slow.ends.links
    )
    ranks = [place for place in slow.ends.places if isinstance(place, int)]
    nodes = tuple(
        Blame(RootKind.NODE, node=place, why="its rates fell")
        for place in slow.ends.places
        if isinstance(place, str)
    )
    return links or (*rank_roots(ranks, "its rates fell"), *nodes)


def _phase(slow: SlowRows) -> str:
    since = f", from step (iteration) {slow.since}" if slow.since is not None else ""
    every = f" every {slow.period} steps" if slow.period else ""
    if slow.reason in (R.INPUT_BOUND, R.STALL, R.SLOWER_TOGETHER):
        word = (
            "input (data loading) before the step" if slow.reason is R.INPUT_BOUND else "own work of the step"
        )
        return f"{word}{every}{since}"
    if slow.reason is R.TAIL:
        return f"compute tail after the collective (all_reduce){since}"
    return f"{slow.what}{every}{since}"


def _advice(slow: SlowRows) -> tuple[Owner, Action]:
    target = ranks_text(slow.ranks) if slow.ranks else ", ".join(slow.hosts)
    if slow.agent is not None:
        return Owner.HOST, Action(_FIX, slow.agent.action, "stop the agent's calls, or make them rare")
    if slow.reason is R.COLLECTIONS:
        words = "collect garbage on all ranks at the same step, not when it happens"
        return Owner.USER_CODE, Action(ActionKind.FIX_CODE, "", words)
    if slow.reason is R.TAIL:
        words = "spread the work that is queued behind the collective"
        return Owner.USER_CODE, Action(ActionKind.FIX_CODE, target, words)
    if slow.reason in (R.INPUT_BOUND, R.STALL):
        return Owner.STORAGE, Action(_FIX, "", "data loader: workers, prefetch, storage")
    if slow.reason is R.SLOWER_TOGETHER:
        return Owner.UNKNOWN, Action(
            ActionKind.COLLECT, "", "clocks, power and what changed on all at that step"
        )
    if slow.verdict_class is VerdictClass.S2:
        return Owner.FABRIC, Action(ActionKind.NETWORK_TICKET, "", "rates and counters of the links")
    if slow.reason is R.ROTATING:
        return Owner.HOST, Action(_FIX, "", "a cause on the hosts: collections, contention, jitter")
    if slow.verdict_class is VerdictClass.S3 or len(slow.ranks) > 1:
        return Owner.HOST, Action(_FIX, target, "free cores of that host: launch and proxies starve")
    words = "clocks, temperature and a benchmark of its GPU; replace it if slow"
    return Owner.GPU, Action(ActionKind.COLLECT, target, words)
