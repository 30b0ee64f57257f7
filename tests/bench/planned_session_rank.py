"""A rank of tests/bench/planned_session.py: the program of the integration tests, with three additions.

`--connect-ms` makes every connection take longer, of gloo's groups and of the replica servers. `--hold FILE`:
training stands still before the step that the file names, for as long as the file is there. The end of each
step is written down, with its generation, below the folder of results.
"""

import argparse
import importlib
import json
import os
import runpy
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from paceline.trainer.groups.backends import GlooRebuild
from paceline.trainer.repair import points
from paceline.trainer.repair.wiring import wiring
from paceline.trainer.testing.job import RESULTS_VARIABLE

PROGRAM = str(Path(__file__).parents[1] / "integration" / "trainer" / "programs" / "repaired.py")
dist: Any = importlib.import_module("torch.distributed")
LOOK_S = 0.001


class SlowConnects(GlooRebuild):
    """Every connection takes `connect_s` longer: the look-up of a peer's address is delayed."""

    def __init__(self, connect_s: float) -> None:
        super().__init__()
        self._connect_s = connect_s

    def gloo(self, store: Any, rank: int, size: int, timeout_s: float) -> Any:
        return super().gloo(_SlowStore(store, f"/{rank}", self._connect_s), rank, size, timeout_s)


class _SlowStore(dist.Store):  # type: ignore[misc]
    def __init__(self, inner: Any, own: str, delay_s: float) -> None:
        super().__init__()
        self._inner, self._own, self._delay_s = inner, own, delay_s

    def set(self, key: str, value: Any) -> None:
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        if not key.endswith(self._own):
            time.sleep(self._delay_s)
        return bytes(self._inner.get(key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._inner.wait(keys, *(() if timeout is None else (timeout,)))

    def add(self, key: str, value: int) -> int:
        return int(self._inner.add(key, value))


def slow_down(connect_s: float) -> None:
    """From here on, so that what is built before the job runs takes as long as what a switch builds."""
    wired = wiring()
    assert wired is not None
    wired.groups.backend = SlowConnects(connect_s)
    connect = socket.create_connection

    def connect_slowly(*arguments: Any, **keywords: Any) -> socket.socket:
        time.sleep(connect_s)
        return connect(*arguments, **keywords)

    socket.create_connection = connect_slowly


def write_steps(hold: Path, file: TextIO) -> points.Observer:
    """[generation, step, end on the clock of the machine]."""

    def observe(point: points.Point, step: int, generation: int) -> None:
        if point is points.Point.SNAPSHOT:
            file.write(json.dumps([generation, step, time.monotonic()]) + "\n")
        elif point is points.Point.FORWARD:
            while hold.exists() and step >= int(hold.read_text() or step + 1):
                time.sleep(LOOK_S)

    return observe


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect-ms", type=float, default=0.0)
    parser.add_argument("--hold", type=Path, required=True)
    arguments, words = parser.parse_known_args()
    if arguments.connect_ms:
        slow_down(arguments.connect_ms / 1e3)
    path = Path(os.environ[RESULTS_VARIABLE]) / f"ends-{os.getpid()}.jsonl"
    with path.open("a", buffering=1) as file:
        points.observe(write_steps(arguments.hold, file))
        sys.argv = [PROGRAM, *words]
        runpy.run_path(PROGRAM, run_name="__main__")


if __name__ == "__main__":
    main()
