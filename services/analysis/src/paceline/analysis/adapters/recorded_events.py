"""Records of the registry and of health out of JSON, without pydantic: the light installation has none."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from paceline.analysis.facts.recorded import Recorded
from paceline.contracts.events import EventType
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord

TEXT_MAX = 1 << 20
RANKS_MAX = 1 << 20
_KINDS: Mapping[str, type[Recorded]] = {
    EventType.JOB_RECORD.value: JobRecord,
    EventType.NODE_RECORD.value: NodeRecord,
    EventType.COMMUNICATOR_RECORD.value: CommunicatorRecord,
    EventType.HEALTH.value: HealthEvent,
}


def read_event(payload: bytes) -> Recorded | None:
    """The record in an EVENT payload; None for a tombstone or a type that a newer writer knows.

    Raises ValueError for anything else.
    """
    try:
        content = json.loads(payload)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("no object")
    kind = _KINDS.get(str(content.get("type")))
    value = content.get("value")
    if kind is None or value is None:
        return None
    record: Recorded = _convert(kind, value)
    if isinstance(record, JobRecord) and not 0 < record.world_size <= RANKS_MAX:
        raise ValueError(f"world_size {record.world_size}, expected 1 to {RANKS_MAX}")
    return record


@lru_cache(maxsize=16)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _convert(kind: Any, value: Any) -> Any:
    """`value` as `kind` declares it. A field that a newer writer added is ignored."""
    origin = get_origin(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value)
    if origin in (Union, UnionType):
        return None if value is None else _convert(get_args(kind)[0], value)
    if origin is tuple:
        return tuple(_convert(get_args(kind)[0], each) for each in _expect(list, value))
    if origin is dict:
        inner = get_args(kind)[1]
        return {str(name)[:TEXT_MAX]: _convert(inner, each) for name, each in _expect(dict, value).items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float:
        return float(_expect((int, float), value))
    return _expect(kind, value)


def _dataclass(kind: type, value: Any) -> Any:
    found = _expect(dict, value)
    hints = _hints(kind)
    known = {}
    for each in fields(kind):
        if each.name in found:
            known[each.name] = _convert(hints[each.name], found[each.name])
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} without {each.name}")
    return kind(**known)


def _expect(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{str(value)[:40]!r}, expected {kind}")
    if isinstance(value, str) and len(value) > TEXT_MAX:
        raise ValueError(f"a text of {len(value)} characters, expected at most {TEXT_MAX}")
    return value
