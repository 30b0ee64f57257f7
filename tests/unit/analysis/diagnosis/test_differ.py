"""Setups, adapters, versions and counters that differ; and where a difference blames nobody."""

import json
from collections.abc import Mapping
from pathlib import Path

from paceline.analysis.diagnosis import Diagnosis, diagnose
from paceline.analysis.diagnosis.rules.differ import shared_peer
from paceline.contracts.verdicts import ActionKind, RootKind, VerdictClass

C = VerdictClass


def answer(folder: Path, **files: str) -> Diagnosis:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, "utf-8")
    return diagnose([str(folder)])[-1]


def nodes(found: Diagnosis) -> set[str]:
    return {root.node for root in found.roots if root.node}


def rows(*objects: Mapping[str, object]) -> str:
    return "".join(json.dumps(one) + "\n" for one in objects)


def using(host: str, rank: int, devices: str, stage: str = "START") -> str:
    head = f"{host}:{100 + rank}:{200 + rank} [{rank % 2}] NCCL INFO "
    return (
        f"{head}NET/IB : {devices}\n"
        f"{head}ncclCommInitRank comm 0x5 rank {rank} nranks 6 cudaDev {rank % 2} busId 1a000 commId 0x8 "
        f"- Init {stage}\n"
    )


def test_the_far_end_that_several_hosts_share() -> None:
    assert shared_peer([("a", "10.0.0.3"), ("b", "10.0.0.3")], {"10.0.0.3": "c"}) == "c"
    assert shared_peer([("a", "10.0.0.3"), ("b", "10.0.0.3")], {}) == "10.0.0.3"
    assert shared_peer([("a", "10.0.0.3"), ("a", "10.0.0.3")], {"10.0.0.3": "c"}) == ""
    assert shared_peer([("a", "10.0.0.3"), ("b", "10.0.0.1")], {"10.0.0.3": "b", "10.0.0.1": "a"}) == ""


def test_a_node_with_fewer_adapters_in_an_init_that_stands(tmp_path: Path) -> None:
    both = "Using [0]ib0:1/IB [1]ib1:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    log = "".join(
        using(f"n{rank // 2}", rank, "Using [0]ib0:1/IB ; OOB eth0:10.0.0.1<0>" if rank > 3 else both)
        for rank in range(6)
    )
    found = answer(tmp_path, job__log=log)
    assert (found.verdict_class, nodes(found)) == (C.H3, {"n2"})
    assert set(found.victims) == {0, 1, 2, 3}
    assert "ib1" in found.summary


def test_most_nodes_with_fewer_adapters_blame_nobody(tmp_path: Path) -> None:
    both = "Using [0]ib0:1/IB [1]ib1:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    log = "".join(
        using(f"n{rank // 2}", rank, both if rank > 3 else "Using [0]ib0:1/IB ; OOB eth0:10.0.0.1<0>")
        for rank in range(6)
    )
    assert nodes(answer(tmp_path, job__log=log)) == set()


def test_one_gpu_for_two_ranks(tmp_path: Path) -> None:
    log = (
        "h:7:9 [0] init.cc:851 NCCL WARN Duplicate GPU detected : rank 3 and rank 2 both on CUDA device 90\n"
    )
    found = answer(tmp_path, job__log=log)
    assert found.verdict_class is C.H2
    assert found.roots[0].kind is RootKind.CONFIGURATION
    assert found.action.kind is ActionKind.FIX_CONFIGURATION


def test_counters_that_grow_everywhere_name_no_adapter(tmp_path: Path) -> None:
    nic = rows(
        *({"t": t, "node": f"n{i}", "symbol_errors": 50 * t * (i + 1)} for t in range(4) for i in range(3))
    )
    assert nodes(answer(tmp_path, nic__jsonl=nic)) == set()


def test_a_lifetime_count_that_stands_is_no_growth(tmp_path: Path) -> None:
    nic = rows(
        *(
            {"t": t, "node": f"n{i}", "symbol_errors": 900 if i == 1 else 0}
            for t in range(4)
            for i in range(3)
        )
    )
    assert nodes(answer(tmp_path, nic__jsonl=nic)) == set()


def test_a_version_is_blamed_only_where_all_nodes_agree(tmp_path: Path) -> None:
    bench = [
        {"driver": v, "node": f"n{i}", "busbw_gbps": 40.0 if v == "570" else 40.0 - 15.0 * (i == 2)}
        for v in ("570", "580")
        for i in range(4)
    ]
    found = answer(tmp_path, bench__jsonl=rows(*bench))
    assert all("580" not in root.name for root in found.roots)


def test_two_collectives_half_and_half_blame_nobody(tmp_path: Path) -> None:
    stack = 'Thread 7 (active): "MainThread"\n    {} (torch/distributed/distributed_c10d.py:2100)\n\n'
    text = "".join(
        f"# rank {rank}\nProcess {rank + 9}: python t.py\n"
        + stack.format("barrier" if rank % 2 else "all_reduce")
        for rank in range(8)
    )
    found = answer(tmp_path, stacks__txt=text)
    assert all(root.rank is None and not root.ranks for root in found.roots)


def test_links_after_a_switch_blame_the_switch_alone(tmp_path: Path) -> None:
    log = (
        "[ 10.1] nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 22013, Fatal, Link 9 Minion Link DLREQ\n"
        "[ 11.1] NVRM: Xid (PCI:0000:18:00): 74, pid=4, name=p, NVLink: fatal error detected on link 4(0x1)\n"
        "[ 11.2] NVRM: Xid (PCI:0000:2a:00): 94, pid=5, name=p, Contained: NVLINK error\n"
    )
    assert [root.gpu for root in answer(tmp_path, dmesg__log=log).roots] == ["nvswitch3"]
