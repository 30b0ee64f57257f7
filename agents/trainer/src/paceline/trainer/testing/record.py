"""What a training script under test writes down, so that two runs can be compared to the bit."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.trainer.protection.memory import memory_of
from paceline.trainer.testing.job import RESULTS_VARIABLE


def record_step(rank: int, step: int, loss: Any, samples: Iterable[int]) -> None:
    """Call it inside the step, after the optimizer; a step that is run again is recorded again."""
    text = float(loss).hex()
    _append(rank, {"step": step, "loss": text, "samples": [int(one) for one in samples]})


def record_end(rank: int, *states: Any) -> None:
    """Call it after the last step with the state dicts that must be equal."""
    _append(rank, {"digest": digest_of(*states)})


def digest_of(*states: Any) -> str:
    """SHA-256 over names, shapes, dtypes and raw bytes of nested state dicts."""
    digest = hashlib.sha256()
    for state in states:
        _feed(digest, state)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(f"{key}:".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for part in value:
            _feed(digest, part)
    elif hasattr(value, "detach"):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(memory_of(tensor))
    else:
        digest.update(repr(value).encode())


def _append(rank: int, entry: dict[str, Any]) -> None:
    folder = os.environ.get(RESULTS_VARIABLE)
    if not folder:
        return
    line = (json.dumps(entry) + "\n").encode()
    path = Path(folder) / f"rank-{rank}.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line)  # one write: a process killed before it has recorded nothing
    finally:
        os.close(fd)
