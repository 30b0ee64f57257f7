"""The agent with real processes and pages; only Kafka is a memory."""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.delivery import Event
from paceline.contracts.batch import BatchFlag, RowKind
from paceline.contracts.codes import ExitKind, ProcessState
from paceline.contracts.registry import CommunicatorRecord, HealthKind, JobRecord, JobState, NodeRecord
from paceline.contracts.topics import JOBS

Eventually = Callable[..., Awaitable[Any]]


async def test_publishes_registry_and_frames(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent()
    rank = await start_rank(rank=1)
    await rank.ask("rounds 5")
    batch = await eventually(
        lambda: next((b for b in publisher.batches() if b.table(RowKind.STATE)["completed"].sum() == 5), None)
    )
    state, process = batch.table(RowKind.STATE)[0], batch.table(RowKind.PROCESS)[0]
    assert (state["rank"], state["entered"], state["head_round"]) == (1, 5, 0)
    assert (process["rank"], process["pid"], process["exit_kind"]) == (1, rank.pid, ExitKind.NONE)
    rounds = [row for b in publisher.batches() for row in b.table(RowKind.ROUND)["round"].tolist()]
    assert sorted(rounds) == [1, 2, 3, 4, 5]  # each kept round once
    record = publisher.job()
    assert (record.world_size, record.shards, record.versions) == (2, 1, {"torch": "2.13.0"})
    assert publisher.values(NodeRecord)[-1].ranks[0].coordinates == {"dp": 1}
    communicator = publisher.values(CommunicatorRecord)[-1]
    assert (communicator.name, communicator.ranks, communicator.shard) == ("world", "0-1", 0)


async def test_sequence_grows_over_a_restart_of_the_agent(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    app = await start_agent()
    rank = await start_rank()
    await eventually(lambda: publisher.batches())
    await app.stop()
    before = publisher.batches()[-1].seq
    await start_agent()
    await eventually(lambda: publisher.batches()[-1].seq > before, 15)
    assert (await rank.ask("status")).startswith("True 2")  # the process said hello again by itself
    assert publisher.newest(RowKind.PROCESS)["flags"].tolist() == [0]


async def test_frozen_process_is_known_to_the_next_agent(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    app = await start_agent()
    frozen, other = await start_rank(0), await start_rank(1)
    await eventually(lambda: len(publisher.newest(RowKind.PROCESS)) == 2)
    os.kill(frozen.pid, signal.SIGSTOP)
    await eventually(lambda: publisher.health(HealthKind.PROCESS_FROZEN))
    await app.stop()
    publisher.records.clear()
    await start_agent()
    batch = await eventually(
        lambda: next((b for b in publisher.batches() if len(b.table(RowKind.STATE))), None), 15
    )
    states = {int(row["rank"]): row["process_state"] for row in batch.table(RowKind.PROCESS)}
    assert states[0] == ProcessState.STOPPED  # though it cannot say hello
    assert [record.rank for record in publisher.values(NodeRecord)[-1].ranks] == [0, 1]
    assert batch.flags & BatchFlag.SUSPECT
    os.kill(frozen.pid, signal.SIGCONT)
    await eventually(lambda: len(publisher.newest(RowKind.STATE)) == 2, 15)
    assert await other.is_connected()


async def test_details_of_a_page_are_given_up_and_read_again_once_another_process_is_suspect(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    app = await start_agent(suspect_s=60.0)
    frozen, other = await start_rank(0), await start_rank(1)
    await other.ask("enter")
    await eventually(lambda: publisher.newest(RowKind.STATE)["open_ops"].tolist() == [0, 1])
    assert [process.view.has_details for process in app.roster.processes.values()] == [False, False]
    assert not any(len(batch.table(RowKind.ROUND)) for batch in publisher.batches())
    os.kill(frozen.pid, signal.SIGSTOP)
    batch = await eventually(
        lambda: next((b for b in publisher.batches() if b.flags & BatchFlag.SUSPECT), None)
    )
    assert batch.table(RowKind.ROUND)["rank"].tolist() == [1]  # the open one of the process that is well


async def test_process_that_died_while_there_was_no_agent(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    app = await start_agent()
    dead, alive = await start_rank(0), await start_rank(1)
    await eventually(lambda: len(publisher.newest(RowKind.PROCESS)) == 2)
    await app.stop()
    await dead.end()
    await start_agent()
    (event,) = await eventually(lambda: publisher.health(HealthKind.PROCESS_EXIT))
    assert (event.rank, event.exit_code) == (0, None)
    assert event.message == "unknown: ended without a goodbye; exit status not readable"
    await eventually(
        lambda: publisher.newest(RowKind.PROCESS)["exit_kind"].tolist() == [ExitKind.UNKNOWN, 0], 15
    )
    assert await alive.is_connected()


async def test_killed_process_leaves_last_words_and_the_signal(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent()
    rank = await start_rank()
    await rank.ask("rounds 3")
    await rank.ask("enter")
    os.kill(rank.pid, signal.SIGKILL)
    (event,) = await eventually(lambda: publisher.health(HealthKind.PROCESS_EXIT))
    assert (event.rank, event.pid, event.exit_code) == (0, rank.pid, -9)
    assert event.message == "signal: killed by SIGKILL"
    batch = await eventually(publisher.last)
    assert batch.flags & BatchFlag.SUSPECT
    process = batch.table(RowKind.PROCESS)[0]
    assert process["exit_kind"] == ExitKind.SIGNAL
    assert process["exit_code"] == -9
    assert process["process_state"] == ProcessState.GONE
    assert batch.table(RowKind.STATE)[0]["head_round"] == 4
    assert len(batch.table(RowKind.FRAME)) == 1
    assert 4 in batch.table(RowKind.ROUND)["round"]
    record = await eventually(lambda: (r := publisher.job()) and r.state is JobState.FAILED and r)
    assert record.end_reason == "rank 0 killed by SIGKILL"


async def test_dead_rank_stays_in_the_frames_while_its_job_lives(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent()
    dead, alive = await start_rank(0), await start_rank(1)
    await dead.ask("rounds 1")
    await alive.ask("rounds 1")
    os.kill(dead.pid, signal.SIGKILL)
    last = await eventually(publisher.last)
    later = await eventually(lambda: (b := publisher.batches()[-1]).seq > last.seq + 1 and b)
    rows = {int(row["rank"]): row for row in later.table(RowKind.PROCESS)}
    assert rows[0]["exit_kind"] == ExitKind.SIGNAL
    assert rows[1]["exit_kind"] == ExitKind.NONE
    assert sorted(later.table(RowKind.STATE)["rank"].tolist()) == [0, 1]
    assert publisher.job().state is not JobState.FAILED  # rank 1 still lives


async def test_orderly_end(start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually) -> None:
    await start_agent()
    rank = await start_rank()
    await rank.ask("rounds 1")
    await rank.ask("finish")
    assert rank.process.stdin is not None
    rank.process.stdin.close()
    record = await eventually(lambda: (r := publisher.job()) and r.state is JobState.FINISHED and r)
    assert record.ended_unix_s is not None
    assert publisher.health(HealthKind.PROCESS_EXIT)[0].exit_code == 0
    assert publisher.last().table(RowKind.PROCESS)[0]["finished"] == 1
    assert publisher.values(NodeRecord)[-1].left


async def test_error_exit_is_told_with_its_status(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent()
    rank = await start_rank()
    await eventually(lambda: publisher.batches())
    assert rank.process.stdin is not None
    rank.process.stdin.write(b"exit 3\n")
    (event,) = await eventually(lambda: publisher.health(HealthKind.PROCESS_EXIT))
    assert (event.exit_code, event.message) == (3, "error: exited with status 3")


async def test_frozen_and_resumed(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent()
    rank = await start_rank()
    await rank.ask("rounds 1")
    await eventually(lambda: publisher.batches())
    os.kill(rank.pid, signal.SIGSTOP)
    (frozen,) = await eventually(lambda: publisher.health(HealthKind.PROCESS_FROZEN))
    assert frozen.rank == 0
    await eventually(lambda: publisher.newest(RowKind.PROCESS)[0]["process_state"] == ProcessState.STOPPED)
    assert publisher.batches()[-1].flags & BatchFlag.SUSPECT
    os.kill(rank.pid, signal.SIGCONT)
    await eventually(lambda: publisher.health(HealthKind.PROCESS_RESUMED))
    os.kill(rank.pid, signal.SIGSTOP)
    events = await eventually(
        lambda: (
            len(publisher.health(HealthKind.PROCESS_FROZEN)) == 2
            and publisher.health(HealthKind.PROCESS_FROZEN)
        )
    )
    os.kill(rank.pid, signal.SIGCONT)
    assert len({event.id for event in events}) == 2  # two occasions, two ids


async def test_open_round_makes_the_batch_suspect(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent(suspect_s=0.3)
    rank = await start_rank()
    await rank.ask("rounds 3")
    await rank.ask("enter")
    batch = await eventually(
        lambda: next((b for b in publisher.batches() if b.flags & BatchFlag.SUSPECT), None)
    )
    assert 4 in batch.table(RowKind.ROUND)["round"]
    assert batch.table(RowKind.STATE)[0]["head_round"] == 4
    seq = batch.seq
    await eventually(lambda: publisher.batches()[-1].seq >= seq + 3)
    frames = sum(len(b.table(RowKind.FRAME)) for b in publisher.batches())
    assert frames == 1  # the full frame once per stalled round


async def test_two_jobs_on_one_node(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent()
    one, two = await start_rank(0, job="one"), await start_rank(0, job="two")
    await one.ask("rounds 2")
    await two.ask("rounds 7")
    for job, rounds in (("one", 2), ("two", 7)):
        await eventually(
            lambda job=job, rounds=rounds: any(
                batch.table(RowKind.STATE)["completed"].tolist() == [rounds]
                for batch in publisher.batches(job)
            )
        )
    assert {record.job for record in publisher.values(JobRecord)} == {"one", "two"}


async def test_restart_under_the_same_name_is_a_new_attempt(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent()
    await start_rank(0, attempt="a1")
    await eventually(publisher.job)
    await start_rank(0, attempt="a2")
    await eventually(lambda: publisher.job().attempt == "a2")
    ended = [r for r in publisher.values(JobRecord) if r.attempt == "a1"][-1]
    assert (ended.state, ended.end_reason) == (JobState.FAILED, "superseded by attempt a2")
    await eventually(lambda: {b.attempt for b in publisher.batches()[-2:]} == {"a1", "a2"})


async def test_cancelled_job(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    await start_agent()
    ranks = [await start_rank(number) for number in range(2)]
    await eventually(lambda: [len(record.ranks) for record in publisher.values(NodeRecord)][-1:] == [2])
    for rank in ranks:
        os.kill(rank.pid, signal.SIGTERM)
    record = await eventually(lambda: (r := publisher.job()) and r.state is JobState.CANCELLED and r)
    assert record.end_reason
    (event,) = publisher.health(HealthKind.CANCELLED)
    assert event.rank is None


async def test_rank_that_is_taken_is_refused(
    start_agent: Any, start_rank: Any, publisher: Any, eventually: Eventually
) -> None:
    app = await start_agent()
    first = await start_rank(0)
    await eventually(first.is_connected)
    second = await start_rank(0, connected=False)
    text = f"rank 0 of job 'job' attempt 'a1' is held by pid {first.pid}"
    await eventually(lambda: _is_told(second, text))
    assert app.drops["refused_rank_taken"]
    os.kill(first.pid, signal.SIGKILL)
    await eventually(second.is_connected)  # it asks again, and the rank is free


async def _is_told(rank: Any, text: str) -> bool:
    return text in await rank.ask("status")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
async def test_claim_on_somebody_elses_job_is_refused(
    start_agent: Any, start_rank: Any, agent_folder: Path, eventually: Eventually
) -> None:
    app = await start_agent()
    agent_folder.chmod(0o755)  # noqa: ASYNC240
    (agent_folder / "agent.sock").chmod(0o777)
    await start_rank(0)
    for attempt in ("a1", "a2"):
        foreign = await start_rank(1, attempt=attempt, user=65534, connected=False)
        assert await eventually(
            lambda f=foreign: _is_told(f, "was registered by uid 0, this process has uid 65534")
        )
    assert app.drops["refused_foreign_job"] >= 2
    own = await start_rank(0, job="theirs", user=65534)
    await eventually(own.is_connected)


async def test_job_that_ended_leaves_the_registry(
    start_agent: Any, start_rank: Any, agent_folder: Path, publisher: Any, eventually: Eventually
) -> None:
    await start_agent(retain_ended_s=0.2, registry_retain_s=0.2)
    rank = await start_rank(world_size=1)
    await eventually(lambda: publisher.batches())
    await rank.end()
    await eventually(lambda: [r for r in publisher.records if isinstance(r, Event) and r.value is None])
    events = [r for r in publisher.records if isinstance(r, Event) and r.topic is JOBS]
    assert {event.key for event in events if event.value is None} == {event.key for event in events}
    await eventually(lambda: (agent_folder / "graves.json").read_bytes() == b"{}")
