"""From records of many senders to table rows: positions from the cache, the slow way where it fails."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.analysis.detection.arrays import Ints, Rows, join_rows
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.processes import Processes
from paceline.analysis.detection.reasons import Refusal
from paceline.analysis.detection.senders import Sender
from paceline.contracts.batch import Batch, RowKind
from paceline.contracts.batch_run import BatchRun

Entry = tuple[Sender, Batch]  # one sample; a call holds at most one of each sender


class Sampled(NamedTuple):
    """Rows of one kind of many samples, at most one of each sender, one after the other."""

    senders: Sequence[Sender]
    rows: Rows
    lengths: list[int]  # rows of each sender

    @classmethod
    def of_run(cls, senders: Sequence[Sender], run: BatchRun, kind: RowKind) -> "Sampled":
        return cls(senders, *run.table(kind))

    @classmethod
    def of_entries(cls, entries: Sequence[Entry], kind: RowKind) -> "Sampled":
        tables = [batch.table(kind) for _, batch in entries]
        return cls([sender for sender, _ in entries], join_rows(tables), [len(table) for table in tables])


def take_members(
    members: Members, sampled: Sampled, rank_limit: int, now_ns: int, refused: Counter[Refusal]
) -> Ints | None:
    """Apply STATE rows; unknown members are admitted within the bounds.

    Returns the positions of the rows where each sender's cache had them.
    """
    senders, rows, lengths = sampled
    if len(rows) == 0:
        return None
    comm, rank = rows["comm"], rows["rank"]
    generation = members.generation
    cached = [len(sender.member_positions) for sender in senders if sender.member_generation == generation]
    if cached == lengths:
        positions = np.concatenate([sender.member_positions for sender in senders])
        if members.apply_same(positions, rows, now_ns):
            return positions
    fits = rank < rank_limit
    refused[Refusal.RANK_OUT_OF_RANGE] += int(len(rows) - np.count_nonzero(fits))
    positions = members.locate(comm, rank)
    missing = (positions < 0) & fits
    if missing.any():
        by_member, by_communicator = members.admit(comm[missing], rank[missing])
        refused[Refusal.MEMBERS_FULL] += by_member
        refused[Refusal.COMMUNICATORS_FULL] += by_communicator
        positions = members.locate(comm, rank)
    known = (positions >= 0) & fits
    members.apply(positions[known], rows[known], now_ns)
    if known.all():
        for sender, part in _parts(sampled, positions):
            sender.member_positions, sender.member_generation = part, members.generation
    return None


def take_processes(
    processes: Processes, sampled: Sampled, rank_limit: int, now_ns: int, refused: Counter[Refusal]
) -> None:
    """Apply PROCESS rows and note which ranks each sender reports."""
    senders, rows, lengths = sampled
    if len(rows) == 0:
        return
    rank = rows["rank"]
    generation = processes.generation
    cached = [len(sender.process_positions) for sender in senders if sender.process_generation == generation]
    if cached == lengths:
        positions = np.concatenate([sender.process_positions for sender in senders])
        if processes.verify(positions, rank):
            processes.apply(positions, rows, now_ns)
            return
    fits = rank < rank_limit
    refused[Refusal.RANK_OUT_OF_RANGE] += int(len(rows) - np.count_nonzero(fits))
    inside = rows[fits]
    positions = processes.locate(inside["rank"])
    if (positions < 0).any():
        processes.admit(inside["rank"])
        positions = processes.locate(inside["rank"])
    processes.apply(positions, inside, now_ns)
    for sender, part in _parts(sampled, np.arange(len(rank))):
        sender.ranks = rank[part][fits[part]].astype(np.uint32)
    if fits.all():
        for sender, part in _parts(sampled, positions):
            sender.process_positions, sender.process_generation = part, processes.generation


def _parts(sampled: Sampled, values: Ints) -> list[tuple[Sender, Ints]]:
    """Each sender with its part of `values`, which has one value per row."""
    ends = np.cumsum(sampled.lengths)
    return [
        (sender, values[end - length : end])
        for sender, length, end in zip(sampled.senders, sampled.lengths, ends, strict=True)
    ]


def waves_of(senders: Sequence[Sender]) -> list[Sequence[int]]:
    """Places in `senders`, in groups that hold each sender once: first its first sample, and so on."""
    if len(set(map(id, senders))) == len(senders):
        return [range(len(senders))] if senders else []
    waves: list[list[int]] = []
    depth: dict[int, int] = {}
    for at, sender in enumerate(senders):
        wave = depth.get(id(sender), 0)
        depth[id(sender)] = wave + 1
        if wave == len(waves):
            waves.append([])
        waves[wave].append(at)
    return list(waves)
