"""The table of logs as evidence for the judge: the same engine that judges live samples.

Only groups whose members are known and speak take part; a rank that says nothing is left to the rules
about silence, because a log that is not there is no report.
"""

from hashlib import blake2b

import numpy as np

from paceline.analysis.builder import build_evidence
from paceline.analysis.diagnosis.case import Case, Standing
from paceline.analysis.evidence import JobEvidence
from paceline.contracts.batch import PROCESS_ROW, STATE_ROW, Batch, BatchKind, RowKind, Rows
from paceline.contracts.codes import FrameFlag, Function, OpState, Source
from paceline.contracts.ids import communicator_id, format_communicator, format_ranks
from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState

JOB, ATTEMPT = "logs", "a1"
AGE_MS = 600_000  # a watchdog has spoken: everything open is old
RANKS_MAX = 1 << 16


def standing_evidence(case: Case) -> JobEvidence | None:
    """Evidence of the groups that speak as a whole; None where there are none, or nothing waits in them."""
    states: list[Rows] = []
    records: list[CommunicatorRecord] = []
    spoken: set[int] = set()
    for group in sorted({name for name, _ in case.table}):
        members = case.members(group)
        rows = {
            s.rank: s for s in case.standings(group) if s.enqueued is not None and s.completed is not None
        }
        if not members or len(members) > RANKS_MAX or not set(members) <= set(rows):
            continue
        comm = communicator_id(group, members)
        view = case.groups.get(group)
        states.append(_states(comm, members, rows))
        spoken |= set(members)
        records.append(
            CommunicatorRecord(
                JOB, ATTEMPT, format_communicator(comm), (view.description if view else "") or group,
                format_ranks(members), 0, 0, "nccl", "",
            )
        )  # fmt: skip
    world = max(spoken, default=-1) + 1
    if not states or not any((rows["head_round"] > 0).any() for rows in states):
        return None
    processes = np.zeros(len(spoken), PROCESS_ROW)
    processes["rank"] = sorted(spoken)
    tables = {RowKind.STATE: np.concatenate(states), RowKind.PROCESS: processes}
    batch = Batch(BatchKind.STALLED, JOB, ATTEMPT, "logs", 0, 1, 1, 1, 1, tables)
    job = JobRecord(JOB, ATTEMPT, "", "", "", "", world, 1, JobState.RUNNING, "logs", "logs", 0.0)
    return build_evidence([batch], job, [], records)


def _states(comm: int, members: tuple[int, ...], standings: dict[int, Standing]) -> Rows:
    rows = np.zeros(len(members), STATE_ROW)
    rows["comm"], rows["peer"] = comm, -1
    rows["flags"], rows["sources"] = FrameFlag.COUNTS_UNOBSERVABLE, Source.TORCH_HOOK
    for at, rank in enumerate(members):
        standing, row = standings[rank], rows[at : at + 1]
        enqueued, completed = max(standing.enqueued or 0, 0), max(standing.completed or 0, 0)
        row["rank"], row["comm_rank"] = rank, at
        row["entered"], row["completed"] = enqueued, min(completed, enqueued)
        row["state"] = OpState.COMPLETED
        if enqueued > completed:
            row["head_round"], row["head_age_ms"] = completed + 1, AGE_MS
            row["open_ops"], row["state"] = min(enqueued - completed, 65_535), OpState.ENTERED
        if standing.work is not None:
            row["function"] = int(Function.__members__.get(standing.work.function.upper(), Function.UNKNOWN))
            row["head_signature"] = _signature(standing) if standing.work.sequence == completed + 1 else 0
    return rows


def _signature(standing: Standing) -> int:
    work = standing.work
    text = "" if work is None else f"{work.function}|{work.count_in}|{work.count_out}|{work.shapes}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") | 1
