"""What a bench says a process costs: with all it started, no cost before the window, none hidden in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.cpu_tree import TICK_MS, Look, Tree, read_tree, summarize

BUSY = "import time\nwhile time.process_time() < 0.1: pass\n"


def lay_out(root: Path, pid: int, ticks: tuple[int, int, int, int], *children: int) -> None:
    folder = root / str(pid) / "task" / str(pid)
    folder.mkdir(parents=True)
    (root / str(pid) / "stat").write_text(
        f"{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {' '.join(map(str, ticks))} 20 0 1 0 77"
    )
    (folder / "children").write_text("".join(f"{child} " for child in children))


def looks(*ticks: tuple[float, int, int], living: frozenset[int] = frozenset()) -> list[Look]:
    return [Look(at_s, Tree(own, below, living)) for at_s, own, below in ticks]


def test_children_count_living_or_waited_for_at_any_depth(tmp_path: Path) -> None:
    lay_out(tmp_path, 10, (1, 2, 3, 4), 11, 13)
    lay_out(tmp_path, 11, (10, 0, 5, 0), 12)
    lay_out(tmp_path, 12, (100, 0, 0, 0))  # 13 has ended between the two readings
    tree = read_tree(10, tmp_path)
    assert (tree.own_ms, tree.children_ms) == (3 * TICK_MS, (7 + 15 + 100) * TICK_MS)
    assert tree.living == {11, 12}


def test_a_process_that_is_not_there_costs_no_0(tmp_path: Path) -> None:
    with pytest.raises(ProcessLookupError, match="no process 10"):
        read_tree(10, tmp_path)


def test_a_child_that_was_waited_for_is_in_a_real_reading() -> None:
    before = read_tree(os.getpid())
    subprocess.run([sys.executable, "-S", "-c", BUSY], check=True)
    assert read_tree(os.getpid()).children_ms - before.children_ms >= 90


def test_what_was_spent_before_the_first_look_is_not_in_the_window() -> None:
    found = summarize(looks((5.0, 2300, 60), (6.0, 2306, 60), (7.0, 2312, 60)), 2)
    assert (found["agent_cpu_s_per_s"], found["agent_node_percent"]) == (0.006, 0.3)


def test_what_happens_once_shows_beside_the_mean() -> None:
    found = summarize(looks((0.0, 0, 0), (1.0, 6, 0), (2.0, 12, 2300), (3.0, 18, 2300)), 2)
    assert (found["agent_worst_second_ms"], found["agent_worst_second_at_s"]) == (2306, 1.0)
    assert found["agent_children_cpu_s_per_s"] == round(2.3 / 3, 5)


def test_children_that_are_started_again_and_again_are_counted() -> None:
    rows = [
        Look(float(at), Tree(0, 0, frozenset(living))) for at, living in enumerate([{7}, {7}, {8}, {9, 7}])
    ]
    assert summarize(rows, 2)["agent_children_started"] == 2
