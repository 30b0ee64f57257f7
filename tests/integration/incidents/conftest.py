"""Records of one job, and a database to write them to."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.ids import derived_id
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Evidence,
    Operation,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
    VerdictRecord,
)

NOW = 1_767_323_045.0


@pytest.fixture
def make_record() -> Callable[..., VerdictRecord]:
    def make(
        revision: int = 1, *, episode: str = "epi_1", job: str = "llama", rank: int = 5, **changes: object
    ) -> VerdictRecord:
        verdict = Verdict(
            verdict_class=VerdictClass.H1,
            sub_reason=SubReason.MISSING_ENTER,
            roots=(Root(RootKind.RANK, rank=rank, node="n0", gpu=rank),),
            victims=tuple(other for other in range(8) if other != rank),
            victims_count=7,
            operation=Operation("00000000000000aa", "tp_1", "all_reduce", 412, 8),
            owner=Owner.USER_CODE,
            action=Action(ActionKind.FIX_CODE, f"rank {rank}", "it never entered"),
            confidence=0.9,
            coverage=Coverage(8, 8, 4, 4, sources=("torch_hook",)),
            evidence=(Evidence("h1.missing", "rank 5 is behind", {"round": "412"}, "1 round"),),
            summary=f"rank {rank} never entered all_reduce round 412 of tp_1",
            stalled_s=9.5,
            communicators_waiting=3,
        )
        record = VerdictRecord(
            derived_id("ver", job, "a1", episode, revision),
            job,
            "a1",
            episode,
            revision,
            verdict,
            NOW - 10,
            NOW,
        )
        return replace(record, **changes)  # type: ignore[arg-type]

    return make
