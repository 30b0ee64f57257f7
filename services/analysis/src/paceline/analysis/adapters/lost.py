"""Who a daemon or coordinator lost: Open MPI's daemons, JAX's coordination service."""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, ProcessEnd

_LINES_MAX = 16
_DAEMON = re.compile(r"^\s{0,8}Remote (?:daemon|prted)\s{0,4}:.{0,120}? on node (?P<host>[\w.-]{1,128})")
_TASK = re.compile(r"/job:[\w.-]{1,64}/replica:\d{1,6}/task:(?P<task>\d{1,7})\b")


class LostPeers:
    """`ORTE has lost communication with a remote daemon` (a node); `tasks are unhealthy` (ranks)."""

    name = "lost peers"
    needles = ("lost communication with a remote", "stopped sending heartbeats")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        below = [line.text[:LOOK_CHARS] for line in list(block.after)[:_LINES_MAX]]
        base = base_of(block)
        if "lost communication" in text:
            found = next((one for line in below if (one := _DAEMON.match(line))), None)
            if found:
                base["speaker"] = replace(base["speaker"], rank=None, host=found["host"])
                yield ProcessEnd(**base, node_lost=True, text=f"{text.strip()[:200]} ({found['host']})")
            return
        tasks = {int(one["task"]) for one in _TASK.finditer(text)}
        for line in below:
            found = _TASK.match(line.strip())
            if not found:
                break
            tasks.add(int(found["task"]))
        for task in sorted(tasks):
            base["speaker"] = replace(base["speaker"], rank=task, pid=None)
            yield ProcessEnd(**base, text=f"task {task} stopped sending heartbeats")
