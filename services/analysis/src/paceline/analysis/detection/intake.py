"""From records of many senders to table rows: positions from the cache, the slow way where it fails."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from paceline.analysis.detection.arrays import Ints, Rows, join_rows
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.processes import Processes
from paceline.analysis.detection.reasons import Refusal
from paceline.analysis.detection.senders import Sender
from paceline.contracts.batch import Batch, RowKind

Entry = tuple[Sender, Batch]  # one sample; a call holds at most one of each sender


def take_members(
    members: Members, entries: Sequence[Entry], rank_limit: int, now_ns: int, refused: Counter[Refusal]
) -> None:
    """Apply the STATE rows of `entries`; unknown members are admitted within the bounds."""
    rows, lengths = _collect(entries, RowKind.STATE)
    if len(rows) == 0:
        return
    comm, rank = rows["comm"], rows["rank"]
    cached = all(
        sender.member_generation == members.generation and len(sender.member_positions) == length
        for (sender, _), length in zip(entries, lengths, strict=True)
    )
    if cached:
        positions = np.concatenate([sender.member_positions for sender, _ in entries])
        if members.verify(positions, comm, rank):
            members.apply(positions, rows, now_ns)
            return
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
        for sender, part in _parts(entries, lengths, positions):
            sender.member_positions, sender.member_generation = part, members.generation


def take_processes(
    processes: Processes, entries: Sequence[Entry], rank_limit: int, now_ns: int, refused: Counter[Refusal]
) -> None:
    """Apply the PROCESS rows of `entries` and note which ranks each sender reports."""
    rows, lengths = _collect(entries, RowKind.PROCESS)
    if len(rows) == 0:
        return
    rank = rows["rank"]
    cached = all(
        sender.process_generation == processes.generation and len(sender.process_positions) == length
        for (sender, _), length in zip(entries, lengths, strict=True)
    )
    if cached:
        positions = np.concatenate([sender.process_positions for sender, _ in entries])
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
    for sender, part in _parts(entries, lengths, np.arange(len(rank))):
        sender.ranks = rank[part][fits[part]].astype(np.uint32)
    if fits.all():
        for sender, part in _parts(entries, lengths, positions):
            sender.process_positions, sender.process_generation = part, processes.generation


def _collect(entries: Sequence[Entry], kind: RowKind) -> tuple[Rows, list[int]]:
    tables = [batch.table(kind) for _, batch in entries]
    return join_rows(tables), [len(table) for table in tables]


def _parts(entries: Sequence[Entry], lengths: Sequence[int], values: Ints) -> list[tuple[Sender, Ints]]:
    """Each sender with its part of `values`, which has one value per collected row."""
    ends = np.cumsum(lengths)
    return [
        (sender, values[end - length : end])
        for (sender, _), length, end in zip(entries, lengths, ends, strict=True)
    ]
