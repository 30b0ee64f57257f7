"""Small Flight Recorder dumps as torch writes them, for tests."""

import pickle
from collections.abc import Iterable
from typing import Any

from paceline.analysis.adapters.flight_pickle import FlightPickles
from paceline.analysis.adapters.model import Document
from paceline.analysis.facts import FlightDump

START_NS = 1_790_000_000_000_000_000
Record = dict[str, Any]


def entry(record: int, sequence: int, name: str = "nccl:all_reduce", size: int = 1024, **more: Any) -> Record:
    """One completed collective of the default group; `more` replaces fields."""
    found: Record = {
        "record_id": record, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": sequence,
        "p2p_seq_id": 0, "op_id": sequence, "profiling_name": name,
        "time_created_ns": START_NS + record * 1_000_000_000, "input_sizes": [[size]],
        "input_dtypes": ["Float"], "output_sizes": [[size]], "output_dtypes": ["Float"],
        "state": "completed", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": True, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    return found | more


def pending(
    record: int, sequence: int, name: str = "nccl:all_reduce", size: int = 1024, **more: Any
) -> Record:
    return entry(record, sequence, name, size, state="scheduled", retired=False) | more


def message(record: int, number: int, name: str, is_open: bool = False, **more: Any) -> Record:
    """A send or receive, such as `send 0->1`."""
    made = pending if is_open else entry
    return made(record, 0, f"nccl:{name}", is_p2p=True, p2p_seq_id=number, **more)


def dump(entries: list[Record], world: int = 4, **more: Any) -> Record:
    """A dump of a rank of the default group."""
    found: Record = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "pg_status": {},
        "comm_lib_version": "2.27.5",
        "entries": entries,
    }
    return found | more


def read_all(records: dict[int, Record]) -> Iterable[FlightDump]:
    """The facts of dumps by rank, through the pickle."""
    for rank, record in records.items():
        yield read_one(f"nccl_trace_rank_{rank}", pickle.dumps(record, 2))


def read_one(name: str, content: bytes) -> FlightDump:
    (found,) = FlightPickles().read(Document(name, content))
    assert isinstance(found, FlightDump)
    return found
