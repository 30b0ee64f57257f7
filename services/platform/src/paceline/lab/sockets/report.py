"""Runs as lines for people and as one JSON object."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from paceline.contracts.codes import Algorithm
from paceline.contracts.verdicts import Root, RootKind, Verdict
from paceline.lab.sockets.run import RunResult

YES_NO = {True: "right", False: "WRONG"}


def render_run(number: int, result: RunResult) -> str:
    """One line."""
    verdict = result.verdict
    said = "nothing" if verdict is None else f"{verdict.verdict_class.value} {render_roots(verdict)}"
    right = f"class {YES_NO[result.score.class_right]}  root {YES_NO[result.score.root_right]}"
    times = (
        "BEFORE THE FAULT" if result.early else f"T {result.base_ms:.0f} ms  after {result.verdict_s:.1f} s"
    )
    return f"{number:3d}  {result.injection.describe():32s} said {said:28s} {right}  {times}\n"


def render_roots(verdict: Verdict) -> str:
    return ", ".join(_render_root(root) for root in verdict.roots) or "no root"


def render_summary(results: Sequence[RunResult]) -> str:
    """Totals of all runs."""
    runs = len(results)
    rows = [
        (name, sum(getattr(result.score, field) for result in results))
        for name, field in (("class", "class_right"), ("root", "root_right"), ("contained", "contained"))
    ]
    return "  ".join(f"{name} {right}/{runs}" for name, right in rows) + "\n"


def render_json(results: Sequence[RunResult]) -> str:
    """All there is, one object."""
    runs = [as_dict(result) for result in results]
    totals = {
        field: sum(getattr(result.score, field) for result in results)
        for field in ("class_right", "root_right", "contained")
    }
    return json.dumps({"runs": runs, "count": len(runs), **totals}, default=str) + "\n"


def render_signatures(result: RunResult) -> str:
    """The counters of each rank in the order of the ring or tree, one line each."""
    lines = [f"     {'rank':>4s} {'in':>3s} {'round':>5s} {'sent':>5s} {'recvd':>5s} {'undel':>5s} "
             f"{'T ms':>8s} {'send wait':>10s} {'recv wait':>10s} {'idle ms':>8s}\n"]  # fmt: skip
    by_rank = {signature.rank: signature for signature in result.signatures}
    for rank in result.topology.order:
        s = by_rank[rank]
        lines.append(
            f"     {s.rank:4d} {'yes' if s.inside else 'no':>3s} {s.round:5d} {s.sends:5d} {s.receives:5d} "
            f"{s.undelivered:5d} {s.duration_ms:8.1f} {s.send_wait_ms:10.1f} {s.recv_wait_ms:10.1f} "
            f"{s.idle_ms:8.0f}\n"
        )
        if result.topology.algorithm is Algorithm.TREE:
            parts = [f"{'<' if e.direction else '>'}{e.peer}/{e.group} {e.wait_ms:.0f}" for e in s.edges]
            lines.append(f"            waited: {'  '.join(parts)}\n")
    return "".join(lines)


def _render_root(root: Root) -> str:
    if root.kind is RootKind.LINK:
        return f"link {root.rank}>{root.peer_rank}"
    if root.rank is not None:
        return f"rank {root.rank}"
    return f"{root.kind.value} {','.join(map(str, root.ranks))}"


def as_dict(result: RunResult) -> dict[str, object]:
    """One run, ready for JSON but for enumerations."""
    verdict = result.verdict
    injection = result.injection
    return {
        "seed": result.seed,
        "fault": injection.fault.value,
        "rank": injection.rank,
        "link": injection.link,
        "late_factor": injection.late_factor,
        "slow_factor": injection.slow_factor,
        "order": result.topology.order,
        "expected_class": injection.verdict_class.value,
        "class": verdict.verdict_class.value if verdict else None,
        "sub_reason": verdict.sub_reason.value if verdict else None,
        "roots": [asdict(root) for root in verdict.roots] if verdict else [],
        "summary": verdict.summary if verdict else None,
        "confidence": verdict.confidence if verdict else None,
        **asdict(result.score),
        "first": asdict(result.first),
        "early": result.early,
        "revisions": result.revisions,
        "base_ms": result.base_ms,
        "verdict_s": result.verdict_s,
        "signatures": [asdict(signature) for signature in result.signatures],
        "reasons": result.reasons,
    }
