"""One Flight Recorder dump, already plain data, as a `FlightDump`: a small table instead of dictionaries.

What differs between versions and backends ends here: gloo leaves every state at "scheduled" and its group
table empty; entries of a coalesced group have no state of their own; JSON has 0 and words where the pickle
has None and numbers.
"""

import marshal
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.pickle_layout import AlikeRows
from paceline.analysis.adapters.pickle_rows import PickledRows
from paceline.analysis.facts import FlightDump, Group, Origin, Speaker, Work
from paceline.analysis.facts.progress import FLIGHT_ENTRY

ENTRIES_MAX = 200_000
GROUPS_MAX = 30_000
GROUP_RANKS_MAX = 1 << 20
COMPLETED = 2
_WORKS_CACHED_MAX = 65_536
_STATES = {"scheduled": 0, "started": 1, "completed": COMPLETED}
_NUMBERS = (
    "record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "is_p2p", "retired",
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns",
)  # fmt: skip
_CALL = ("profiling_name", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
_take_numbers, _take_call = itemgetter(*_NUMBERS), itemgetter(*_CALL)
_take_state = itemgetter("state")
_PAIR = re.compile(r"(\d{1,7})\s*(?:->|<-)\s*(\d{1,7})")
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})\D*$")
_SUFFIXES = (".json", ".pickle", ".pkl", ".bin", ".dump", ".txt", ".gz", ".bz2", ".xz", ".pt", ".trace")
_works: dict[bytes, Work] = {}
_Ints = npt.NDArray[np.int64]
Rows = PickledRows | AlikeRows  # entries that were never built
Entries = list[dict[str, Any]] | Rows


class OddRowsError(ValueError):
    """Entries that are not columns of numbers and words."""


def is_dump(record: Any) -> bool:
    """Whether plain data looks like a dump; `entries` is absent where nothing was recorded."""
    if not isinstance(record, dict):
        return False
    entries = record.get("entries", [])
    if not isinstance(entries, list) or not (entries or isinstance(record.get("pg_config"), dict)):
        return False
    return not entries or (isinstance(entries[0], dict) and "profiling_name" in entries[0])


def read_dump(
    name: str, record: dict[str, Any], notes: tuple[str, ...] = (), rows: Rows | None = None
) -> FlightDump:
    """The dump in file `name`; `rows` instead of its entries where they were read as columns.

    Odd values become 0 or are left out, and are counted in its notes. Raises `OddRowsError` where `rows`
    have no such columns: read the entries one by one then.
    """
    if rows is not None:
        columns, first, work_of = _row_columns(rows)
        entries: Entries = rows
        odd = 0
    else:
        raw = record.get("entries") or []
        columns, first, work_of, entries = _entry_columns(raw)
        odd = len(raw) - len(entries)
    if odd:
        notes = (*notes, f"{odd} entries could not be read")
    calls = [
        rows.values(at, _CALL) if rows is not None and entries is rows else _take_call(entries[at])
        for at in first
    ]
    works = tuple(_work(call) for call in calls)
    groups, group_of, by_id = _groups(record, entries, columns["pg_id"])
    names = [str(call[0]) for call in calls]
    backend = _backend(names)
    table = _table(columns, group_of, work_of)
    status = _status(record, groups, by_id)
    own_state(table, backend, names)
    if backend != "nccl":
        _reopen_failed(table, groups, status)
    order: _Ints | None = None
    if bool((table["record"][1:] < table["record"][:-1]).any()):
        order = np.argsort(table["record"], kind="stable")
        table = table[order]
    is_open = table["state"] < COMPLETED
    oldest_record, newest_record = (
        (int(table["record"][0]), int(table["record"][-1])) if len(table) else (0, -1)
    )
    gaps = max(newest_record - oldest_record + 1 - len(table), 0)
    busy = any(enqueued > 0 for enqueued, _, _ in status.values())
    only_active = bool(is_open.all()) and (gaps > 0 or oldest_record > 0 or (len(table) == 0 and busy))
    oldest = int(np.argmax(is_open)) if is_open.any() else -1
    if order is not None and oldest >= 0:
        oldest = int(order[oldest])
    rank = _own_rank(name, groups, group_of, entries, columns["is_p2p"])
    return FlightDump(
        origin=Origin(name),
        speaker=Speaker(rank=rank),
        version=str(record.get("version", ""))[:32],
        groups=groups,
        works=works,
        entries=table,
        status=status,
        overwritten=0 if only_active else max(oldest_record, 0),
        library_version=str(record.get("comm_lib_version") or record.get("nccl_version") or "")[:64],
        backend=backend,
        gaps=gaps,
        only_active=only_active,
        timeout_ms=_timeout_ms(entries[oldest]) if oldest >= 0 else None,
        notes=notes,
    )


def rank_in_name(name: str) -> int | None:
    """`nccl_trace_rank_3`, `comm_lib_trace_rank_3.json`, `_dump_9`, `host-2_rank7.pkl`: the last number
    after "rank", else the last number of the file's name."""
    stem = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    while stem.lower().endswith(_SUFFIXES):
        stem = stem[: stem.rindex(".")]
    found = _RANK_IN_NAME.findall(stem)
    if found:
        return int(found[-1])
    last = _LAST_NUMBER.search(stem)
    return int(last[1]) if last else None


def own_state(table: npt.NDArray[np.void], backend: str, names: Sequence[str]) -> None:
    """Put into `state` what the backend means: gloo retires what is over; of a coalesced group only the
    closing entry is followed."""
    if backend != "nccl" and len(table) and not bool((table["state"] > 0).any()):
        table["state"][table["retired"]] = COMPLETED
    closing = np.flatnonzero(["oalesced" in name for name in names])
    if len(closing) == 0:
        return
    at = np.flatnonzero(np.isin(table["work"], closing))
    floor = -1
    for end in at.tolist():
        begin = end - 1
        while begin > floor and table["group"][begin] == table["group"][end]:
            same = table["is_p2p"][begin] == table["is_p2p"][end]
            if not same or (not table["is_p2p"][end] and table["sequence"][begin] != table["sequence"][end]):
                break
            if table["state"][begin] == COMPLETED and table["retired"][begin]:
                break
            table["state"][begin] = table["state"][end]
            begin -= 1
        floor = end


def _reopen_failed(
    table: npt.NDArray[np.void], groups: tuple[Group, ...], status: dict[str, tuple[int, int, int]]
) -> None:
    """An operation that failed is retired as well; `pg_status` counts only what was completed."""
    for at, group in enumerate(groups):
        if group.name in status:
            late = (table["group"] == at) & (table["sequence"] > max(status[group.name][2], 0))
            table["state"][late & ~table["is_p2p"]] = 0


def _columns(entries: list[dict[str, Any]]) -> tuple[dict[str, npt.NDArray[np.int64]], list[bytes]]:
    """Numbers by field, and each entry's call as comparable bytes. Raises for anything unusual."""
    if not entries:
        return {name: np.zeros(0, np.int64) for name in (*_NUMBERS, "state")}, []
    rows = zip(*map(_take_numbers, entries), strict=True)
    found = {}
    for name, column in zip(_NUMBERS, rows, strict=True):
        values = [value or 0 for value in column] if name.startswith("time_") else column
        found[name] = np.array(values, np.int64)
    found["state"] = np.array([_STATES[state] for state in map(_take_state, entries)], np.int64)
    # Version 2 writes equal values as equal bytes, whatever objects they are.
    return found, list(map(marshal.dumps, map(_take_call, entries), repeat(2)))


def _plain_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with every field that `_columns` takes: older versions, and damaged ones."""
    name = entry.get("profiling_name")
    text = name if isinstance(name, str) else ""
    plain: dict[str, Any] = {"profiling_name": text[:300]}
    sequence = _whole(entry.get("collective_seq_id", entry.get("seq_id")))
    pair = entry.get("is_p2p")
    plain["is_p2p"] = bool(pair) if pair is not None else _PAIR.search(text) is not None
    plain["collective_seq_id"] = sequence
    plain["p2p_seq_id"] = _whole(entry.get("p2p_seq_id", sequence if plain["is_p2p"] else 0))
    plain["record_id"] = _whole(entry.get("record_id", entry.get("id")))
    plain["pg_id"] = _whole(entry.get("pg_id", entry.get("process_group_id")))
    state = entry.get("state")
    plain["state"] = state if isinstance(state, str) and state in _STATES else "scheduled"
    plain["retired"] = bool(entry.get("retired", plain["state"] == "completed"))
    for field in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
        plain[field] = _whole(entry.get(field))
    for field in _CALL[1:]:
        value = entry.get(field)
        plain[field] = value[:4096] if isinstance(value, list) else []
    plain["process_group"] = entry.get("process_group")
    plain["timeout_ms"] = entry.get("timeout_ms")
    try:
        marshal.dumps(_take_call(plain), 2)
    except ValueError:  # nested too deeply
        plain |= {field: [] for field in _CALL[1:]}
    return plain


def _whole(value: Any) -> int:
    """A number as such, or as digits; 0 for anything else."""
    if isinstance(value, bool) or value is None:
        return int(bool(value))
    if isinstance(value, str):
        value = value.strip()
        return int(value) if value.removeprefix("-").isdecimal() and len(value) < 19 else 0
    if isinstance(value, int):
        return value if -(1 << 62) < value < 1 << 62 else 0
    return 0


def _entry_columns(
    raw: list[Any],
) -> tuple[dict[str, _Ints], list[int], npt.NDArray[np.int32], list[dict[str, Any]]]:
    """Numbers by field, the first entry of each distinct call, each entry's call, and the entries."""
    entries = raw[:ENTRIES_MAX]
    try:
        columns, calls = _columns(entries)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        entries = [_plain_entry(entry) for entry in entries if isinstance(entry, dict)]
        columns, calls = _columns(entries)
    first: dict[bytes, int] = {}
    for at, call in enumerate(calls):
        first.setdefault(call, at)
    index = dict(zip(first, range(len(first)), strict=True))
    return columns, list(first.values()), np.array([index[call] for call in calls], np.int32), entries


def _row_columns(rows: Rows) -> tuple[dict[str, _Ints], list[int], npt.NDArray[np.int32]]:
    """The same of rows that were never built."""
    if len(rows) > ENTRIES_MAX:
        raise OddRowsError
    try:
        columns = {name: rows.number(name) for name in _NUMBERS}
        columns["state"] = rows.word("state", _STATES)
        first, kinds = rows.alike(_CALL)
    except (KeyError, TypeError, ValueError) as error:
        raise OddRowsError from error
    return columns, first, kinds


def _call_of(entries: Entries, at: int) -> tuple[Any, ...]:
    return entries.values(at, _CALL) if not isinstance(entries, list) else _take_call(entries[at])


def _work(call: tuple[Any, ...]) -> Work:
    """The operation of an entry; equal ones of all dumps are one object."""
    key = marshal.dumps(call, 2)
    work = _works.get(key)
    if work is None:
        if len(_works) >= _WORKS_CACHED_MAX:
            _works.clear()
        work = _works[key] = _read_work(*call)
    return work


def _read_work(name: Any, sizes_in: Any, types_in: Any, sizes_out: Any, types_out: Any) -> Work:
    text = name if isinstance(name, str) else ""
    pair = _PAIR.search(text)
    types = types_in if isinstance(types_in, list) and types_in else types_out
    return Work(
        function=function_of(text),
        count_in=_elements(sizes_in),
        count_out=_elements(sizes_out),
        shapes=str(sizes_in)[:400],
        dtype=str(types[0])[:32] if isinstance(types, list) and types else "",
        peer=int(pair[2]) if pair else None,
    )


def _elements(sizes: Any) -> int | None:
    """Elements of all tensors together; None where the sizes are not lists of numbers."""
    if not isinstance(sizes, list):
        return None
    total = 0
    for size in sizes:
        count = 1
        for side in size if isinstance(size, list | tuple) else [size]:
            if not isinstance(side, int) or not 0 <= side < 1 << 48:
                return None
            count *= side
        total += count
        if total >= 1 << 62:
            return None
    return total


def _table(
    columns: dict[str, npt.NDArray[np.int64]],
    group_of: npt.NDArray[np.int64],
    work_of: npt.NDArray[np.int32],
) -> npt.NDArray[np.void]:
    table = np.zeros(len(work_of), FLIGHT_ENTRY)
    table["group"], table["work"], table["record"] = group_of, work_of, columns["record_id"]
    table["is_p2p"], table["retired"] = columns["is_p2p"] != 0, columns["retired"] != 0
    table["sequence"] = np.where(table["is_p2p"], columns["p2p_seq_id"], columns["collective_seq_id"])
    table["state"] = columns["state"]
    table["created_ns"] = columns["time_created_ns"]
    table["started_ns"] = columns["time_discovered_started_ns"]
    table["completed_ns"] = columns["time_discovered_completed_ns"]
    return table


def _groups(
    record: dict[str, Any], entries: Entries, ids: npt.NDArray[np.int64]
) -> tuple[tuple[Group, ...], npt.NDArray[np.int64], dict[int, int]]:
    """All groups of the process, the group of each entry, and group by process-local number."""
    found: dict[str, Group] = {}
    config = record.get("pg_config")
    for key, value in list(config.items())[:GROUPS_MAX] if isinstance(config, dict) else ():
        about = value if isinstance(value, dict) else {}
        ranks = parse_ranks(about.get("ranks"))
        name = str(about.get("name", key))[:200]
        if name or ranks:  # gloo writes one entry without name and ranks for all its groups
            found[name] = Group(name, str(about.get("desc", ""))[:200], len(ranks), ranks)
    order = {name: at for at, name in enumerate(found)}
    groups = list(found.values())
    by_id: dict[int, int] = {}
    values, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    if len(values) == 1 and len(found) > 1:  # some writers give every group the same number
        ids = _numbers_of_names(entries, ids)
        values, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    local = np.zeros(len(values), np.int64)
    for at, (number, entry) in enumerate(zip(values.tolist(), first.tolist(), strict=True)):
        named = entries[entry].get("process_group")
        pair = named if isinstance(named, list | tuple) and len(named) == 2 else (str(number), "")
        name = str(pair[0])[:200] or str(number)
        if name not in order and len(groups) < GROUPS_MAX:
            order[name] = len(groups)
            groups.append(Group(name, str(pair[1])[:200]))
        local[at] = by_id[number] = order.get(name, 0)
    return tuple(groups), local[inverse.reshape(-1)] if len(values) else ids, by_id


def _numbers_of_names(entries: Entries, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One number for each name of a group; `ids` where the names cannot be compared."""
    try:
        if not isinstance(entries, list):
            _, kinds = entries.alike(("process_group",))
        else:
            index: dict[bytes, int] = {}
            keys = [marshal.dumps(entry.get("process_group"), 2) for entry in entries]
            kinds = np.array([index.setdefault(key, len(index)) for key in keys], np.int32)
    except (KeyError, TypeError, ValueError):
        return ids
    return kinds.astype(np.int64) + int(ids[0]) if int(kinds.max(initial=0)) > 0 else ids


def parse_ranks(value: Any) -> tuple[int, ...]:
    """`"[0, 1, 4]"`, or a list; empty where it is not one."""
    if isinstance(value, list):
        value = str(value)
    return _parse_ranks(value) if isinstance(value, str) and len(value) < 9 * GROUP_RANKS_MAX else ()


@lru_cache(maxsize=1024)
def _parse_ranks(text: str) -> tuple[int, ...]:
    parts = text.strip().strip("[]").split(",")
    try:
        ranks = tuple(int(part) for part in parts if part.strip()) if len(text) > 2 else ()
    except ValueError:
        return ()
    return ranks if all(0 <= rank < GROUP_RANKS_MAX for rank in ranks) else ()


def _status(
    record: dict[str, Any], groups: tuple[Group, ...], by_id: dict[int, int]
) -> dict[str, tuple[int, int, int]]:
    """`pg_status` by the group's name. Its keys are process-local numbers in the order of creation."""
    given = record.get("pg_status")
    if not isinstance(given, dict):
        return {}
    ids = sorted({_whole(key): key for key in list(given)[:GROUPS_MAX]}.items())
    names = {number: groups[at].name for number, at in by_id.items() if at < len(groups)}
    rest = [number for number, _ in ids if number not in names]
    left = [group.name for group in groups if group.name not in names.values()]
    if len(rest) == len(left) and (len(left) == 1 or all(name.isdecimal() for name in left)):
        left.sort(key=lambda name: (len(name), name))
        names |= dict(zip(rest, left, strict=True))
    found = {}
    for number, key in ids:
        value = given[key]
        if number in names and isinstance(value, dict):
            found[names[number]] = (
                _whole(value.get("last_enqueued_collective", -1)),
                _whole(value.get("last_started_collective", -1)),
                _whole(value.get("last_completed_collective", -1)),
            )
    return found


def _backend(names: list[str]) -> str:
    """`nccl` of `nccl:all_reduce`."""
    prefix, colon, _ = (names[0] if names else "").partition(":")
    return prefix[:16] if colon else "nccl"


def _timeout_ms(entry: dict[str, Any]) -> int | None:
    timeout = _whole(entry.get("timeout_ms"))
    return timeout if 0 < timeout < 1 << 40 else None


def _own_rank(
    name: str,
    groups: tuple[Group, ...],
    group_of: npt.NDArray[np.int64],
    entries: Entries,
    pairs: npt.NDArray[np.int64],
) -> int | None:
    """Global rank: from a send or receive, which names both ends; else the file's name; else the one
    rank that all groups of the process have in common."""
    for at in np.flatnonzero(pairs)[:1].tolist():
        ends = _PAIR.search(str(entries[at]["profiling_name"]))
        ranks = groups[int(group_of[at])].ranks if groups else ()
        if ends and int(ends[1]) < len(ranks):
            return ranks[int(ends[1])]
    rank = rank_in_name(name)
    known = [group.ranks for group in groups if group.ranks]
    if rank is not None and all(ranks[rank : rank + 1] == (rank,) or rank in ranks for ranks in known):
        return rank
    common = set(known[0]).intersection(*known) if known else set()
    return common.pop() if len(common) == 1 else rank
