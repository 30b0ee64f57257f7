"""Real gloo processes: what DDP, ZeroRedundancyOptimizer and FSDP2 hold survives the loss of a rank."""

import re
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.needs_torch


def test_a_lost_rank_is_restored_bitwise_under_ddp_zero_and_fsdp2(launch: Callable[..., list[Any]]) -> None:
    ended = launch("protected.py", "ddp", "zero", "fsdp2")
    assert [each.status for each in ended] == [0, 0], ended[0].errors + ended[1].errors
    lines = [line for each in ended for line in each.output.splitlines() if " same=" in line]
    assert len(lines) == 6
    for line in lines:
        assert "same=True" in line, line
        assert "step=3 replayed=0" in line, line
        assert line.endswith(" protected"), line
    victim = {line.split()[0]: line for line in lines if "rank=1" in line}
    own = {kind: int(re.search(r"own=(\d+)", line)[1]) for kind, line in victim.items()}  # type: ignore[index]
    shared = {kind: int(re.search(r"shared=(\d+)", line)[1]) for kind, line in victim.items()}  # type: ignore[index]
    assert shared["ddp"] > shared["zero"] > shared["fsdp2"] == 0, "only what is equal comes from a replica"
    assert own["ddp"] < own["zero"], "without sharding no optimizer state goes to a keeper"
