"""Runs cases, each until its verdict has settled."""

import time
from dataclasses import dataclass

from paceline.contracts.batch import Batch, BatchKind
from paceline.fleet import Truth
from paceline.lab.evaluation.cases import Case
from paceline.lab.evaluation.control import argmin_verdict
from paceline.lab.evaluation.pipeline import Pipeline, Told
from paceline.lab.evaluation.score import Score, score

SETTLE_S = 12  # a verdict that has not been revised for so long stands


@dataclass(frozen=True)
class Result:
    """A case, what was injected and what was found; `control` is the same for the argmin-only variant."""

    case: Case
    truth: Truth
    score: Score
    control: Score
    cpu_s: float


def run_case(case: Case) -> Result | None:
    """None where the topology has no place for the fault, or the fault cannot take effect there."""
    started = time.process_time()
    try:
        job = case.make_job()
    except ValueError:
        return None
    signals: dict[int, tuple[float, Batch]] = {}

    def watch(at_s: float, batch: Batch) -> None:
        if batch.kind in (BatchKind.STALLED, BatchKind.SLOW):
            signals[batch.shard] = (at_s, batch)

    pipeline = Pipeline(job, watch)
    changed_s = -1
    while pipeline.second + 1 < case.limit_s:
        if pipeline.step():
            changed_s = pipeline.second
        settled = changed_s >= 0 and pipeline.second - changed_s >= SETTLE_S
        if settled and job.truth().fired and case.kind is not None:
            break
    truth = job.truth()
    if case.kind is not None and not truth.fired:
        return None
    blamed = [
        Told(at_s, verdict, False, "control")
        for at_s, batch in signals.values()
        if (verdict := argmin_verdict(batch)) is not None
    ]
    cpu_s = time.process_time() - started
    return Result(case, truth, score(truth, pipeline.told), score(truth, blamed), cpu_s)
