"""Flight Recorder dumps as evidence for the judgement, and what it cannot say of them.

`flight_evidence` is what the live system would have seen at the moment of the dump: same judge, same order.
`read_flight` adds the first divergence of the history, ranks that are alone in a call, and ranks without a
dump; `flight_verdict.judge_flight` joins both.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from paceline.analysis.builder import build_evidence
from paceline.analysis.diagnosis.flight_fold import Call, Collectives, Fold, fold_dumps
from paceline.analysis.diagnosis.flight_history import Divergence, first_divergence
from paceline.analysis.evidence import JobEvidence
from paceline.analysis.facts import FlightDump, Group
from paceline.contracts.batch import (
    PEER_ROW,
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    Batch,
    BatchKind,
    RowKind,
    Rows,
)
from paceline.contracts.codes import FrameFlag, OpKind, OpState, Source
from paceline.contracts.ids import communicator_id, format_communicator, format_ranks
from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState

JOB, ATTEMPT = "dumps", "a1"
AGE_MIN_MS = 60_000  # dumps are written after a timeout; how long ago the last call was is in none of them
AGE_MAX_MS = 1 << 31
ROUNDS_MAX = 400_000
HISTORY_ROUNDS = 2  # rounds before a divergence that are shown with it
_UNCOUNTED = 1 << 20  # stands for calls of a pair that the ring no longer has, on both sides
_NO_KIND = ("", "undefined")


@dataclass(frozen=True)
class Member:
    """One communicator: its group, its members in order, whether all of them are known."""

    group: Group
    id: int
    name: str
    kind: str
    ranks: tuple[int, ...]
    inferred: bool


@dataclass(frozen=True, eq=False)
class FlightReport:
    """What the dumps of one job say together."""

    evidence: JobEvidence
    divergences: tuple[Divergence, ...]  # at most one for each group, the smallest first
    missing: tuple[int, ...]  # ranks that some group names and that no dump is of
    files: dict[int, str]  # rank: file
    notes: tuple[str, ...]
    names: tuple[str, ...]  # of communicators, by number of the divergence's group


def flight_evidence(dumps: Iterable[FlightDump]) -> JobEvidence:
    """The evidence in `dumps`; a rank without a dump is a rank without a report."""
    return read_flight(dumps).evidence


def read_flight(dumps: Iterable[FlightDump]) -> FlightReport:
    """Everything that `dumps` show; each is let go once it is read."""
    return report_of(fold_dumps(dumps))


def report_of(fold: Fold) -> FlightReport:
    members, of_group = _members(fold)
    world = max([*fold.ranks, *(rank for each in members for rank in each.ranks)], default=-1) + 1
    tables = _gather(fold, members, of_group)
    divergences = [
        found
        for at, each in enumerate(members)
        if (found := first_divergence(at, tables[at], fold.calls, len(each.ranks) - len(tables[at])))
        is not None
    ]
    at_ns = _dumped_ns(fold)
    rows = {
        RowKind.STATE: [_state_rows(members[at], table, fold, at_ns) for at, table in enumerate(tables)],
        RowKind.ROUND: [*_open_rounds(members, tables, fold, at_ns)],
        RowKind.PEER: [*_peer_rows(fold, members, of_group, at_ns)],
        RowKind.PROCESS: [_process_rows(fold, of_group)],
    }
    rows[RowKind.ROUND] += [
        _history(members[each.group], tables[each.group], each, fold) for each in divergences
    ]
    batch = Batch(
        BatchKind.STALLED, JOB, ATTEMPT, "dumps", 0, 1, 1, 1, 1,
        {kind: np.concatenate(parts) for kind, parts in rows.items() if parts},
    )  # fmt: skip
    evidence = build_evidence([batch], _job(world), [], [_record(each, fold) for each in members])
    inferred = {each.id for each in members if each.inferred}
    mask = np.array([int(comm) in inferred for comm in evidence.comm_ids], np.bool_)
    evidence = replace(evidence, inferred=evidence.inferred | mask)
    absent = sorted(set(range(world)).difference(fold.ranks)) if any(each.ranks for each in members) else []
    return FlightReport(
        evidence,
        tuple(sorted(divergences, key=lambda each: (each.sequence, each.group))),
        tuple(absent),
        {rank: part.file for rank, part in fold.ranks.items()},
        tuple(_notes(fold, absent)),
        tuple(each.name for each in members),
    )


def _members(fold: Fold) -> tuple[list[Member], list[int]]:
    """Communicators, and the one of each group of the fold. Groups without a member list (gloo, a cut
    file) join one of the same name, else they are who was seen in them."""
    seen: dict[int, set[int]] = {}
    for rank, part in fold.ranks.items():
        for number in part.groups:
            seen.setdefault(number, set()).add(rank)
    world = max(fold.ranks, default=-1) + 1
    by_name: dict[str, list[int]] = {}
    shared = Counter(group.description for group in fold.groups if group.ranks or not group.name.isdigit())
    members: list[Member] = []
    of_group = [-1] * len(fold.groups)
    for at, group in enumerate(fold.groups):
        if group.ranks:
            of_group[at] = len(members)
            by_name.setdefault(group.name, []).append(len(members))
            members.append(_member(group, group.ranks, False, shared))
    for at, group in enumerate(fold.groups):
        if group.ranks:
            continue
        found = by_name.get(group.name, [])
        if len(found) == 1:
            of_group[at] = found[0]
            continue
        everybody = group.description == "default_pg"
        ranks = tuple(range(world)) if everybody else tuple(sorted(seen.get(at, ())))
        of_group[at] = len(members)
        by_name[group.name] = [len(members)]
        members.append(_member(group, ranks, not everybody, shared))
    return members, of_group


def _member(group: Group, ranks: tuple[int, ...], inferred: bool, shared: Counter[str]) -> Member:
    description = "" if group.description in _NO_KIND else group.description
    name = description or f"group {group.name}"
    if description and description not in ("default_pg", group.name):
        name = f"{description} {group.name}"
    kind = "world" if group.description == "default_pg" else description.lower()
    return Member(
        group, communicator_id(f"{group.name}|{group.description}", ranks), name, kind, ranks, inferred
    )


def _gather(fold: Fold, members: list[Member], of_group: list[int]) -> list[list[tuple[int, Collectives]]]:
    """(rank, what it called) by communicator. A rank that knows the group and called nothing there is
    in it with nothing; that is an observation where its dump is whole."""
    tables: list[list[tuple[int, Collectives]]] = [[] for _ in members]
    for rank in sorted(fold.ranks):
        for group, each in fold.ranks[rank].collectives.items():
            tables[of_group[group]].append((rank, each))
    return tables


def _dumped_ns(fold: Fold) -> int:
    """About when the dumps were made: the oldest open call's timeout after it, or a minute after the last
    event. No dump says it; ages serve to tell standing from moving, never to compare nodes."""
    newest = max((part.newest_ns for part in fold.ranks.values()), default=0)
    waits = [p.oldest_open_ns + p.timeout_ms * 1_000_000 for p in fold.ranks.values() if p.oldest_open_ns]
    return max(newest + AGE_MIN_MS * 1_000_000, max(waits, default=0))


def _age_ms(created_ns: int, at_ns: int) -> int:
    return min(max((at_ns - created_ns) // 1_000_000, 1), AGE_MAX_MS)


def _state_rows(member: Member, table: list[tuple[int, Collectives]], fold: Fold, at_ns: int) -> Rows:
    rows = np.zeros(len(table), STATE_ROW)
    rows["comm"], rows["peer"] = member.id, -1
    rows["flags"], rows["sources"] = FrameFlag.COUNTS_UNOBSERVABLE, Source.TORCH_HOOK
    place = {rank: at for at, rank in enumerate(member.ranks)}
    for row, (rank, each) in zip(rows, table, strict=True):
        row["rank"], row["comm_rank"] = rank, place.get(rank, 0)
        row["entered"], row["completed"] = max(each.entered, 0), max(each.completed, 0)
        row["idle_ms"] = _age_ms(each.last_ns, at_ns) if each.last_ns else 0
        row["open_ops"] = min(len(each.calls) - each.head, 65_535)
        if len(each.calls):
            shown = fold.calls[each.calls[min(each.head, len(each.calls) - 1)]]
            row["function"], row["dtype"] = shown.function, shown.dtype
        row["state"] = OpState.ENTERED if row["open_ops"] else OpState.COMPLETED
        if row["open_ops"]:
            row["head_round"], row["head_issue"] = (
                max(each.completed, 0) + 1,
                max(int(each.records[0]), 0) + 1,
            )
            row["head_signature"], row["head_age_ms"] = (
                shown.signature,
                _age_ms(int(each.created_ns[0]), at_ns),
            )
        elif not each.known and each.entered > each.completed:
            row["head_round"] = max(each.completed, 0) + 1
            row["head_age_ms"], row["open_ops"] = AGE_MIN_MS, 1
    return rows


def _open_rounds(
    members: list[Member], tables: list[list[tuple[int, Collectives]]], fold: Fold, at_ns: int
) -> Iterator[Rows]:
    """Open collectives of each rank, as many as are kept."""
    left = ROUNDS_MAX
    for member, table in zip(members, tables, strict=True):
        place = {rank: at for at, rank in enumerate(member.ranks)}
        for rank, each in table:
            count = min(len(each.records), left)
            if count == 0:
                continue
            left -= count
            rows = np.zeros(count, ROUND_ROW)
            rows["comm"], rows["rank"], rows["comm_rank"] = member.id, rank, place.get(rank, 0)
            rows["round"] = [max(int(each.sequences[each.head + at]), 0) for at in range(count)]
            rows["issue"] = np.maximum(each.records[:count], 0) + 1
            rows["age_ms"] = [_age_ms(int(created), at_ns) for created in each.created_ns[:count]]
            rows["kind"], rows["state"], rows["peer"] = OpKind.COLLECTIVE, OpState.ENTERED, -1
            _put_calls(rows, [fold.calls[call] for call in each.calls[each.head : each.head + count]])
            yield rows


def _put_calls(rows: Rows, calls: list[Call]) -> None:
    for field in ("signature", "function", "dtype", "count"):
        rows[field] = [getattr(call, field) for call in calls]
    rows["level"], rows["flags"] = 255, FrameFlag.COUNTS_UNOBSERVABLE


def _history(member: Member, table: list[tuple[int, Collectives]], found: Divergence, fold: Fold) -> Rows:
    """The diverging round and the ones before it, as every member recorded them."""
    place = {rank: at for at, rank in enumerate(member.ranks)}
    parts: list[tuple[int, int, Call]] = []
    for rank, each in table:
        for sequence in range(found.sequence - HISTORY_ROUNDS, found.sequence + 1):
            if isinstance(each.sequences, range):
                at = sequence - each.sequences.start
            else:
                at = int(np.searchsorted(each.sequences, sequence))
            if 0 <= at < len(each.calls) and int(each.sequences[at]) == sequence:
                parts.append((rank, sequence, fold.calls[each.calls[at]]))
    rows = np.zeros(len(parts), ROUND_ROW)
    rows["comm"], rows["kind"], rows["peer"] = member.id, OpKind.COLLECTIVE, -1
    rows["state"] = OpState.COMPLETED
    rows["rank"], rows["round"] = [part[0] for part in parts], [max(part[1], 0) for part in parts]
    rows["comm_rank"] = [place.get(part[0], 0) for part in parts]
    _put_calls(rows, [part[2] for part in parts])
    return rows


def _peer_rows(fold: Fold, members: list[Member], of_group: list[int], at_ns: int) -> Iterator[Rows]:
    """One row for each rank and peer. Where a ring no longer has the first calls of a pair, both sides
    count from what is completed, so that the open ones meet; a rank with a dump that posted nothing to
    somebody who posted to it has a row that says so."""
    rows: dict[tuple[int, int, int], Rows] = {}
    for rank in sorted(fold.ranks):
        for (group, peer, way), pair in fold.ranks[rank].pairs.items():
            member = members[of_group[group]]
            if peer >= len(member.ranks) or rank not in member.ranks:
                continue
            row = _pair_row(rows, fold, members, of_group[group], rank, member.ranks[peer])
            if member.ranks[peer] in fold.ranks:
                _pair_row(rows, fold, members, of_group[group], member.ranks[peer], rank)
            if int(row["posted"][0, way]) == 0:
                row["completed"][:, way], row["posted"][:, way] = pair.completed, pair.posted
            else:
                row["posted"][:, way] += np.uint64(pair.posted - pair.completed)
            if pair.call >= 0:
                row["head_age_ms"][:, way] = _age_ms(pair.created_ns, at_ns)
                row["head_issue"][:, way] = pair.record + 1
                row["head_signature"][:, way] = fold.calls[pair.call].signature
    return iter(rows.values())


def _pair_row(
    rows: dict[tuple[int, int, int], Rows], fold: Fold, members: list[Member], comm: int, rank: int, peer: int
) -> Rows:
    """The row of `rank` about `peer`, made where it is not there: nothing posted since the common count."""
    found = rows.get((comm, rank, peer))
    if found is None:
        member, part, other = members[comm], fold.ranks[rank], fold.ranks.get(peer)
        found = rows[comm, rank, peer] = np.zeros(1, PEER_ROW)
        found["comm"], found["rank"], found["peer"] = member.id, rank, member.ranks.index(peer)
        found["comm_rank"] = member.ranks.index(rank)
        if not part.whole or (other is not None and not other.whole):
            found["completed"] = found["posted"] = _UNCOUNTED
    return found


def _process_rows(fold: Fold, of_group: list[int]) -> Rows:
    rows = np.zeros(len(fold.ranks), PROCESS_ROW)
    for row, rank in zip(rows, sorted(fold.ranks), strict=True):
        part = fold.ranks[rank]
        row["rank"], row["issued"] = rank, part.issued
        row["communicators"] = min(len({of_group[group] for group in part.collectives}), 65_535)
    return rows


def _record(member: Member, fold: Fold) -> CommunicatorRecord:
    backend = next((part.backend for part in fold.ranks.values()), "nccl")
    return CommunicatorRecord(
        JOB, ATTEMPT, format_communicator(member.id), member.name, format_ranks(member.ranks), 0, 0, backend,
        member.kind,
    )  # fmt: skip


def _job(world: int) -> JobRecord | None:
    if world == 0:
        return None
    return JobRecord(
        JOB, ATTEMPT, "", "", "", "", world, 1, JobState.RUNNING, "dumps", "dumps", 0.0,
    )  # fmt: skip


def _notes(fold: Fold, absent: list[int]) -> Iterator[str]:
    if absent:
        yield f"no dump of rank {format_ranks(absent)[:200]}"
    if fold.unranked:
        yield f"{len(fold.unranked)} dumps say no rank, first {fold.unranked[0]}: name files by rank"
    if fold.replaced:
        yield f"{len(fold.replaced)} older dumps of ranks that have a newer one were left out"
    parts = fold.ranks.values()
    if any(part.only_active for part in parts):
        yield "the dumps hold open operations only: nothing of the history can be compared"
    if any(not part.whole and not part.only_active for part in parts):
        yield "rings were overwritten: the history begins after the start of the job"
    if any(part.backend == "gloo" for part in parts):
        yield "gloo records no sends and receives, no start and no member lists of its groups"
    for part in list(parts)[:1000]:
        for text in part.notes:
            yield f"{part.file}: {text}"
