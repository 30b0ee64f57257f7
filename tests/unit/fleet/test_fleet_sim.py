"""`paceline sim`: arguments, the description, and a job that is played without Kafka."""

import argparse
from collections.abc import Sequence

import pytest

from paceline.contracts.cli import CommandParser
from paceline.contracts.topics import Topic
from paceline.fleet import commands
from paceline.fleet.layout import Topology
from paceline.fleet.program import pipeline


def parse(*words: str) -> argparse.Namespace:
    parser = CommandParser(prog="paceline")
    commands.add(parser.add_subparsers(parser_class=CommandParser))
    return parser.parse_args(["sim", *words])


def test_a_dry_run_says_what_it_made_and_when_the_fault_struck(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parse(
        "--shape", "2x1x4", "--fault", "h1", "--seed", "3", "--at", "2", "--seconds", "9", "--dry-run"
    )
    assert commands.run(arguments) == 0
    said = capsys.readouterr().out
    assert "8 ranks (TP 2 x PP 1 x DP 4) on 1 nodes" in said
    assert "h1 took effect at rank" in said
    assert "9 to paceline.frames.v1" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fault", "h9"), "--fault is 'h9', expected none or one of h1"),
        (("--shape", "8x4"), "--shape is '8x4', expected TPxPPxDP"),
        (("--ranks", "1"), "the job has 1 ranks, expected 2"),
        (("--profile", "tcp"), "profile is 'tcp', expected one of gloo"),
        (("--fault", "h2-root", "--shape", "1x1x4"), "h2-root needs a communicator of kind tp"),
    ],
)
def test_a_wrong_argument_is_named(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run(parse(*words, "--dry-run")) == 2
    assert message in capsys.readouterr().err


def test_every_number_of_ranks_gets_a_shape_of_that_size() -> None:
    for ranks in (2, 3, 8, 12, 16, 64, 100, 512, 4096, 98_304, 100_000):
        assert Topology.for_ranks(ranks).ranks == ranks


@pytest.mark.parametrize(("stages", "micro"), [(1, 4), (2, 1), (4, 4), (8, 3), (3, 9)])
def test_each_part_of_the_pipeline_runs_once_after_what_it_needs(stages: int, micro: int) -> None:
    done: dict[tuple[int, bool, int], int] = {}
    for index, tick in enumerate(pipeline(stages, micro)):
        for stage, forward, part in zip(tick.stages, tick.forward, tick.micro, strict=True):
            key = (int(stage), bool(forward), int(part))
            assert key not in done
            done[key] = index
    assert len(done) == 2 * stages * micro
    for (stage, forward, part), at in done.items():
        before = (stage - 1, True, part) if forward else (stage + 1, False, part)
        assert done.get(before, -1) < at


class RecordingProducer:
    """Takes records as the runtime's producer does."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, int, dict[str, bytes]]] = []

    async def send(self, topic: Topic, key: str, value: bytes, headers: Sequence[tuple[str, bytes]]) -> None:
        self.sent.append((topic.name, key, len(value), dict(headers)))


async def test_records_go_to_their_topics_with_the_keys_and_headers_of_agents() -> None:
    producer = RecordingProducer()
    job = commands.build_job(parse("--shape", "2x1x4", "--seed", "3"))
    sink = commands.KafkaSink(producer)  # type: ignore[arg-type]
    assert await commands.play(job, 3, sink, paced=False) == 0
    by_topic: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
    for topic, key, _, headers in producer.sent:
        by_topic.setdefault(topic, []).append((key, headers))
    assert {key for key, _ in by_topic["paceline.frames.v1"]} == {f"{job.job}:0"}
    keys = [key for key, _ in by_topic["paceline.jobs.v1"]]
    assert keys[:2] == [job.job, f"{job.job}:node-00000"]
    assert keys[-1] == job.job  # the end of the job
    assert all(headers["ce_specversion"] == b"1.0" for _, headers in by_topic["paceline.jobs.v1"])
