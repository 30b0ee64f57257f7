"""Detail of probes: the own rule, commands, and the control page of a real process."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.agent.collecting import Answer
from paceline.agent.detail import (
    DEFAULT,
    HOUR_NS,
    Asked,
    DetailPolicy,
    OwnRule,
    Why,
    decide_level,
    decide_own,
    is_standing,
)
from paceline.agent.detail_command import decide_detail
from paceline.agent.pages import PageView
from paceline.contracts.codes import DetailLevel, FrameFlag
from paceline.contracts.commands import Command, CommandKind, sign
from paceline.contracts.detail import DetailReport
from paceline.contracts.dtypes import PROCESS_DTYPE
from paceline.probe.snapshot import BLOCK_DTYPE

S = 1_000_000_000
FULL = {"level": "full"}
KEY = b"a key of the whole cluster"
NOW = 1_700_000_000.0
POLICY = DetailPolicy(DetailLevel.EDGES, 60 * S, 300 * S, 2)


def run(samples: list[tuple[int, bool]], policy: DetailPolicy = POLICY) -> tuple[OwnRule, list[Why]]:
    """(second, whether something stands still) in, the reasons out."""
    rule, reasons = OwnRule(), []
    for second, standing in samples:
        rule, why = decide_own(rule, second * S, policy, standing=standing)
        reasons.append(why)
    return rule, reasons


class TestOwnRule:
    def test_raised_while_it_stands_and_for_a_while_behind_it(self) -> None:
        _, reasons = run([(1, False), (2, True), (30, True), (31, False), (89, False), (90, False)])
        assert reasons == [Why.QUIET, Why.STANDS_STILL, Why.GOES_ON, Why.HOLDS, Why.HOLDS, Why.QUIET]

    def test_one_that_never_ends_is_raised_for_a_bounded_time(self) -> None:
        rule, reasons = run([(second, True) for second in range(0, 3000, 10)])
        assert sum(why.raises for why in reasons) == 30
        assert set(reasons[30:]) == {Why.SPENT}
        _, why = decide_own(rule, 3001 * S, POLICY, standing=False)
        assert why is Why.QUIET

    def test_not_more_often_than_allowed_in_an_hour(self) -> None:
        samples = [(start + step, step == 0) for start in (0, 100, 200, 300) for step in (0, 99)]
        rule, reasons = run(samples)
        assert [why for why in reasons if why is not Why.QUIET] == [
            Why.STANDS_STILL, Why.STANDS_STILL, Why.OFTEN, Why.OFTEN,
        ]  # fmt: skip
        assert decide_own(rule, HOUR_NS + 1, POLICY, standing=True)[1] is Why.STANDS_STILL

    def test_off(self) -> None:
        off = replace(POLICY, level=DetailLevel.ROUNDS)
        assert run([(1, True)], off) == (OwnRule(), [Why.OFF])

    def test_memory_is_bounded(self) -> None:
        rule, _ = run([(second, second % 200 == 0) for second in range(0, 40_000, 50)])
        assert len(rule.began_ns) <= POLICY.per_hour_max


@pytest.mark.parametrize(
    ("why", "asked", "expected"),
    [
        (Why.QUIET, None, (DEFAULT, Why.QUIET)),
        (Why.STANDS_STILL, None, (DetailLevel.EDGES, Why.STANDS_STILL)),
        (Why.QUIET, Asked(DetailLevel.FULL, 10 * S), (DetailLevel.FULL, Why.COMMAND)),
        (Why.HOLDS, Asked(DetailLevel.FULL, 10 * S), (DetailLevel.FULL, Why.COMMAND)),
        (Why.HOLDS, Asked(DetailLevel.OFF, 10 * S), (DetailLevel.EDGES, Why.HOLDS)),
        (Why.QUIET, Asked(DetailLevel.OFF, 10 * S), (DetailLevel.OFF, Why.COMMAND)),
        (Why.SPENT, Asked(DetailLevel.FULL, 5 * S), (DEFAULT, Why.SPENT)),  # its time is over
    ],
)
def test_level(why: Why, asked: Asked | None, expected: tuple[DetailLevel, Why]) -> None:
    assert decide_level(why, asked, 5 * S, POLICY) == expected


def command(**changes: object) -> Command:
    plain = Command("cmd_1", CommandKind.SET_DETAIL, "n1", "job", "a1", 0, NOW + 60, arguments=FULL)
    return sign(replace(plain, **changes), KEY)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "living", "answer"),
    [
        ({}, 2, Answer.ACCEPT),
        ({}, 0, Answer.NO_JOB),
        ({"node": "n2"}, 2, Answer.OTHER_NODE),
        ({"arguments": {"level": "everything"}}, 2, Answer.BAD_ARGUMENT),
        ({"arguments": {}}, 2, Answer.BAD_ARGUMENT),
        ({"expires_unix_s": NOW}, 2, Answer.EXPIRED),
        ({"id": "cmd_0"}, 2, Answer.DUPLICATE),
    ],
)
def test_commands(changes: dict[str, object], living: int, answer: Answer) -> None:
    assert decide_detail(command(**changes), "n1", KEY, NOW, ["cmd_0"], living)[0] is answer


def test_what_is_not_signed_is_not_obeyed() -> None:
    forged = replace(command(), arguments={"level": "off"})
    assert decide_detail(forged, "n1", KEY, NOW, (), 1)[0] is Answer.UNSIGNED
    assert decide_detail(command(), "n1", None, NOW, (), 1)[0] is Answer.NO_KEY


def test_a_report_survives_its_text() -> None:
    report = DetailReport(8, DetailLevel.FULL, 7, DetailLevel.ROUNDS, 6, 2, 3, 4, 5, 123_456)
    assert DetailReport.parse(report.text()) == report
    for text in ("", "detail was not set: no_job", report.text().replace("full", "fuller")):
        assert DetailReport.parse(text) is None


def view_of(*frames: tuple[int, int, int], finished: int = 0) -> PageView:
    """(flags, head entered, newest entered) of each frame, in seconds."""
    table = np.zeros(len(frames), BLOCK_DTYPE)
    for frame, (flags, head_s, entered_s) in zip(table["frame"], frames, strict=True):
        frame["flags"], frame["entered_ns"] = flags, entered_s * S
        frame["head_round"], frame["head_entered_ns"] = int(head_s > 0), head_s * S
    process = np.zeros(1, PROCESS_DTYPE)[0]
    process["finished"] = finished
    return PageView(process, bytearray(table.tobytes()))


UNSEEN, CLOSED = int(FrameFlag.COMPLETION_UNOBSERVABLE), int(FrameFlag.CLOSED)


@pytest.mark.parametrize(
    ("frames", "standing"),
    [
        ([], False),
        ([(0, 10, 10)], True),
        ([(0, 98, 98)], False),
        ([(0, 0, 10)], False),  # nothing open
        ([(CLOSED, 10, 10)], False),
        ([(0, 10, 10), (0, 0, 99)], True),
        ([(UNSEEN, 10, 10), (UNSEEN, 99, 99)], False),  # used once, and the job goes on
        ([(UNSEEN, 10, 10), (UNSEEN, 11, 11)], True),
    ],
)
def test_what_stands_still(frames: list[tuple[int, int, int]], standing: bool) -> None:
    assert is_standing(view_of(*frames), 100 * S, 3 * S) is standing
    assert not is_standing(view_of(*frames, finished=1), 100 * S, 3 * S)
