"""Stacks of every tool: frames innermost first, of the right rank."""

from pathlib import Path

import pytest

from paceline.analysis.facts import StackSeen
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

PY_SPY = """Process 41: python train.py
Python v3.11.4 (/usr/bin/python3.11)

Thread 41 (idle): "MainThread"
    wait (threading.py:306)
    get (queue.py:179)
        Arguments:
            self: <Queue at 0x7f>
    run (train.py:9)
Thread 52 (active+gil): "loader"
    select (selectors.py:415)
"""
PYSTACK = """Traceback for thread 41 (python) [Has the GIL] (most recent call last):
    (Python) File "/app/train.py", line 9, in <module>
        main()
    (Python) File "/app/train.py", line 5, in main
        dist.all_reduce(x)
    (C) File "socket.cpp", line 77, in recvBytes (libtorch_cpu.so)
"""
GDB = """Thread 3 (Thread 0x7f3b2a7fc700 (LWP 1234) "pt_main_thread"):
#0  0x00007f3b30a4 in poll () from /lib/libc.so.6
#1  0x00007f3b30b5 in ncclProxyService (_args=0x5) at proxy.cc:1500
"""
FAULT = """Current thread 0x00007f0a1b2c3740 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/app/train.py", line 9 in <module>
"""


@pytest.mark.parametrize(
    ("text", "thread", "frames", "native"),
    [
        (PY_SPY, "MainThread", ("wait (threading.py:306)", "get (queue.py:179)", "run (train.py:9)"), False),
        (
            PYSTACK,
            "python",
            (
                "recvBytes (libtorch_cpu.so) (socket.cpp:77)",
                "main (/app/train.py:5)",
                "<module> (/app/train.py:9)",
            ),
            False,
        ),
        (GDB, "pt_main_thread", ("poll (/lib/libc.so.6)", "ncclProxyService (proxy.cc:1500)"), True),
        (
            FAULT,
            "MainThread",
            ("wait (/usr/lib/python3.11/threading.py:320)", "<module> (/app/train.py:9)"),
            False,
        ),
    ],
)
def test_frames_are_innermost_first(
    tmp_path: Path, text: str, thread: str, frames: tuple[str, ...], native: bool
) -> None:
    stack = of_type(facts_of(tmp_path, text), StackSeen)[0]
    assert (stack.thread, stack.frames, stack.native) == (thread, frames, native)


def test_every_thread_with_its_state(tmp_path: Path) -> None:
    stacks = of_type(facts_of(tmp_path, PY_SPY), StackSeen)
    assert [(one.thread, one.active, one.speaker.pid) for one in stacks] == [
        ("MainThread", False, 41),
        ("loader", True, 41),
    ]


@pytest.mark.parametrize(
    "rule", ["# rank {}", "=== rank {} (node-b) ===", "--- Rank: {} pid=41 ---", "## global rank={}"]
)
def test_ranks_come_from_the_lines_above(tmp_path: Path, rule: str) -> None:
    text = "\n\n".join(f"{rule.format(rank)}\n{PY_SPY}" for rank in (3, 12))
    stacks = of_type(facts_of(tmp_path, text), StackSeen)
    assert [one.speaker.rank for one in stacks] == [3, 3, 12, 12]


def test_rank_comes_from_the_name_of_the_file(tmp_path: Path) -> None:
    (stack,) = of_type(facts_of(tmp_path, GDB, "rank_7.txt"), StackSeen)
    assert stack.speaker.rank == 7


def test_one_file_does_not_lend_its_rank_to_the_next(tmp_path: Path) -> None:
    facts_of(tmp_path, "# rank 3\n" + PY_SPY, "a.txt")
    stack = of_type(facts_of(tmp_path, PY_SPY, "b.txt"), StackSeen)[0]
    assert stack.speaker.rank is None


def test_a_deep_stack_keeps_its_innermost_frames(tmp_path: Path) -> None:
    frames = "".join(f'    (Python) File "m.py", line {n}, in f{n}\n        f{n + 1}()\n' for n in range(150))
    text = "Traceback for thread 9 (python) [] (most recent call last):\n" + frames
    (stack,) = of_type(facts_of(tmp_path, text), StackSeen)
    assert stack.frames[0] == "f149 (m.py:149)"


@pytest.mark.parametrize(
    ("line", "kernel"),
    [
        ("rank 3: running kernel my_fused_kernel (no progress for 312 s)", "my_fused_kernel"),
        ("[rank3]: stuck in CUDA kernel ncclKernel_AllReduce_RING_LL", "ncclKernel_AllReduce_RING_LL"),
        (
            "*      0      -   0        7 Active 0x0000000f (24,1,1) (544,1,1) ncclDevKernel_SendRecv(Args)",
            "ncclDevKernel_SendRecv",
        ),
    ],
)  # fmt: skip
def test_what_a_gpu_runs(tmp_path: Path, line: str, kernel: str) -> None:
    (stack,) = of_type(facts_of(tmp_path, line + "\n"), StackSeen)
    assert (stack.frames, stack.thread) == ((f"{kernel} (gpu kernel)",), "gpu kernel")
