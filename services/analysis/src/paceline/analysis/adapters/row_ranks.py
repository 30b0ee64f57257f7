"""Rows that hold the values of all ranks: `"ms_per_rank": [310, 311]`, `"times": {"0": 310, "1": 311}`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.analysis.adapters.row_fields import bare_name, is_measure

RANKS_MAX = 1 << 14
_OF_RANKS = re.compile(r"(?:^|_)(?:per_rank|by_rank|of_ranks|each_rank|all_ranks|ranks?)(?=_|$)")
_KEY = re.compile(r"(?:rank|r)?[_ -]?(?P<rank>\d{1,6})")


def by_rank(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row for each rank, with what all share; nothing where no field holds the values of ranks."""
    columns: dict[str, dict[int, float]] = {}
    for key, value in row.items():
        name = bare_name(str(key))
        values = _of_list(name, value) if isinstance(value, list) else _of_object(value)
        if values is not None:
            bare = _OF_RANKS.sub("", name).strip("_")
            columns[bare if is_measure(bare) else "step_time"] = values
    if not columns or "rank" in row:
        return
    shared = {key: value for key, value in row.items() if not isinstance(value, list | dict)}
    for rank in sorted({rank for values in columns.values() for rank in values})[:RANKS_MAX]:
        found = {name: values[rank] for name, values in columns.items() if rank in values}
        yield {**{k: v for k, v in shared.items() if bare_name(str(k)) not in found}, "rank": rank, **found}


def _of_list(name: str, value: list[Any]) -> dict[int, float] | None:
    if not _OF_RANKS.search(name) or not 2 <= len(value) <= RANKS_MAX or not all(map(_is_number, value)):
        return None
    return (
        None
        if all(isinstance(one, int) for one in value) and name in ("ranks", "rank")
        else dict(enumerate(value))
    )


def _of_object(value: Any) -> dict[int, float] | None:
    if not isinstance(value, dict) or not 2 <= len(value) <= RANKS_MAX:
        return None
    found = {int(m["rank"]): v for k, v in value.items() if (m := _KEY.fullmatch(str(k))) and _is_number(v)}
    return found if len(found) == len(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
