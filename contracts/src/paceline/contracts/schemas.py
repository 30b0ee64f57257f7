"""JSON in and out for the plain dataclasses, and their golden JSON Schemas.

`python -m paceline.contracts.schemas DIR` writes one file for each type; a difference from the
committed files is a change of the wire and is reviewed as one. Needs pydantic.
"""

import json
import sys
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from paceline.contracts.commands import Command, CommandResult
from paceline.contracts.events import IncidentEvent
from paceline.contracts.evidence import EvidencePart
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord
from paceline.contracts.repair import MemberRecord, RecoveryReport
from paceline.contracts.scaling import ScalingRecord
from paceline.contracts.verdicts import VerdictRecord

T = TypeVar("T")

SCHEMA_TYPES: tuple[type, ...] = (
    JobRecord,
    NodeRecord,
    CommunicatorRecord,
    MemberRecord,
    HealthEvent,
    VerdictRecord,
    ScalingRecord,
    IncidentEvent,
    Command,
    CommandResult,
    RecoveryReport,
    EvidencePart,
)


class ContractError(ValueError):
    """JSON that is not of the type; the message names field, value and what was expected."""


_adapters: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    """Adapters cost milliseconds to build and nothing to keep: one for each dataclass."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def dump_json(value: object) -> bytes:
    """Compact JSON of one of the dataclasses."""
    return _adapter(type(value)).dump_json(value)


def load_json(kind: type[T], data: bytes | str) -> T:
    """A validated `kind`; ContractError for anything else."""
    try:
        value: T = _adapter(kind).validate_json(data)
        return value
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or kind.__name__
        raise ContractError(
            f"{kind.__name__}: {where} is {str(first['input'])[:200]!r}: {first['msg']}"
        ) from None


def build_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema by type name."""
    return {kind.__name__: _adapter(kind).json_schema() for kind in SCHEMA_TYPES}


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in build_schemas().items():
        (folder / f"{name}.json").write_text(json.dumps(schema, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
