"""Torn frames that the reader takes for whole, while writers go at full speed: must be none. One JSON object.

    python -m tests.bench.reader_torn [--reads 10000000] [--writers 2]

Each writer is a process with a page of one communicator; round n of it has count n. A frame is whole if it is
one of two states: round n entered, or completed. Copies are those of the agent's reader, with as
many tries; one that was torn in all of them is refused, which is right, and counted.
"""

import argparse
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Sequence

from paceline.contracts.layout import FRAME, FRAMES_OFFSET, PAGE_BYTES
from paceline.probe._native import Mapping
from paceline.probe.writer import Page

TRIES_MAX = 64  # kernels/native/page_read.cc
FIELDS = ("round", "count", "bytes", "started", "completed", "head_round")


def write_until_killed(ready: int) -> None:
    page = Page.create("torn", "1", 0, 2, 0, "bench")
    slot = page.open_communicator(9, 0, 0, 2, 0, 1)
    enter, complete, number = page.enter, page.complete, 0
    os.write(ready, f"{page.page_fd}\n".encode())
    while True:
        number += 1
        complete(enter(slot, 1, 8, 1, -1, number, 4 * number, number))


def start_writer() -> tuple[int, Mapping]:
    """Its pid, and its page as the agent maps it."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_until_killed(write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        page_fd = os.open(f"/proc/{child}/fd/{int(pipe.readline())}", os.O_RDONLY)
    mapping = Mapping(page_fd, PAGE_BYTES, False)
    os.close(page_fd)
    return child, mapping


def read(mappings: Sequence[Mapping], reads: int) -> dict[str, object]:
    """`reads` frames, of all pages in turn."""
    lock = FRAMES_OFFSET + FRAME.field("lock").offset
    pick = [struct.Struct(f"<{FRAME.field(name).offset}xQ").unpack_from for name in FIELDS]
    accepted = refused = torn = moved = last = 0
    began = time.monotonic()
    for place in range(reads):
        mapping = mappings[place % len(mappings)]
        data, consistent = mapping.copy(lock, FRAMES_OFFSET, FRAME.size, 0, 0, TRIES_MAX)
        if not consistent:
            refused += 1
            continue
        accepted += 1
        number, count, size, started, completed, head = (unpack(data)[0] for unpack in pick)
        is_open = completed == number - 1 and head == number
        is_over = completed == number and head == 0
        whole = number == count == started and size == 4 * number and (is_open or is_over or number == 0)
        torn += not whole
        moved += number != last
        last = number
    spent_s = time.monotonic() - began
    return {
        "reads": reads, "accepted": accepted, "refused": refused, "torn_accepted": torn,
        "other_round_than_before": moved, "seconds": round(spent_s, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="torn frames that a reader accepts, as JSON")
    parser.add_argument("--reads", type=int, default=10_000_000)
    parser.add_argument("--writers", type=int, default=2)
    options = parser.parse_args()
    writers = [start_writer() for _ in range(options.writers)]
    try:
        result = read([mapping for _, mapping in writers], options.reads)
    finally:
        for pid, _ in writers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    rounds = [struct.unpack("<Q", m.copy(0, FRAMES_OFFSET + FRAME.field("round").offset, 8, 0, 0, 1)[0])[0]
              for _, m in writers]  # fmt: skip
    sys.stdout.write(json.dumps({"benchmark": "reader_torn", **result, "rounds_written": rounds}) + "\n")
    return 1 if result["torn_accepted"] else 0


if __name__ == "__main__":
    sys.exit(main())
