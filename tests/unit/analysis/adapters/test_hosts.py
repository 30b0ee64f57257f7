"""What hosts say: GPUs, buses, ports, benchmarks, processes."""

from pathlib import Path

import pytest

from paceline.analysis.adapters.reading import hint_of
from paceline.analysis.facts import Membership, NetworkFailure, SampleRow, SettingSeen
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

SMI = """GPU 00000000:9B:00.0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 2
        Aggregate
            DRAM Uncorrectable            : 7
    Remapped Rows
        Pending                           : Yes
        Remapping Failure Occurred        : No
GPU 00000000:AB:00.0
    Clocks Throttle Reasons
        SW Power Cap                      : Not Active
        SW Thermal Slowdown               : Active
"""


def test_only_active_reasons_of_the_right_gpu(tmp_path: Path) -> None:
    settings = of_type(facts_of(tmp_path, SMI), SettingSeen)
    assert [(one.speaker.gpu, one.name, one.value) for one in settings] == [
        ("0000:9b:00", "clock_event_reason", "SW Power Cap"),
        ("0000:9b:00", "clock_event_reason", "HW Slowdown"),
        ("0000:9b:00", "clock_event_reason", "HW Thermal Slowdown"),
        ("0000:9b:00", "ecc_uncorrectable", "2"),
        ("0000:9b:00", "ecc_uncorrectable_lifetime", "7"),
        ("0000:9b:00", "remap_pending", "Yes"),
        ("0000:ab:00", "clock_event_reason", "SW Thermal Slowdown"),
    ]


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ("SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-", "redirect"),
        ("SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-", "off"),
        ("SrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-", "off"),
    ],
)
def test_acs_matters_where_it_redirects(tmp_path: Path, flags: str, value: str) -> None:
    text = f"20:01.1 PCI bridge: A bridge\n\t\tACSCtl:\t{flags}\n"
    (setting,) = of_type(facts_of(tmp_path, text), SettingSeen)
    assert (setting.name, setting.value) == ("pcie_acs", value)
    assert setting.text.startswith("20:01.1 PCI bridge")


@pytest.mark.parametrize(
    "text",
    [
        "CA 'mlx5_2'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 40\n",
        "link mlx5_2/1 state DOWN physical_state POLLING netdev ib2\n",
        "hca_id: mlx5_2\n\tport:\t1\n\t\tstate:\t\t\tPORT_DOWN (1)\n",
    ],
)
def test_a_port_that_is_down(tmp_path: Path, text: str) -> None:
    failures = of_type(facts_of(tmp_path, text), NetworkFailure)
    assert failures[0].device == "mlx5_2"
    assert failures[0].text == "mlx5_2/1 down"


def test_a_port_that_is_up_is_no_failure(tmp_path: Path) -> None:
    text = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n"
    facts = facts_of(tmp_path, text)
    assert not of_type(facts, NetworkFailure)
    assert [(one.name, one.value) for one in of_type(facts, SettingSeen)] == [
        ("ib_port", "mlx5_0/1 active"),
        ("ib_port", "mlx5_0/1 linkup"),
        ("ib_rate", "mlx5_0 400"),
    ]


NCCL_TESTS = """#  Rank  0 Group  0 Pid   6899 on node-a device  0 [0000:04:00] GPU
#  Rank  1 Group  0 Pid   6900 on node-b device  0 [0000:05:00] GPU
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    120.1    8.73   16.37      0    119.0    8.81   16.52      0
  1073741824     268435456     float     sum      -1   204588    5.25    9.84      0   204000    5.26    9.87      0
# Avg bus bandwidth    : 13.15
"""  # noqa: E501


def test_nccl_tests_with_both_halves(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, NCCL_TESTS)
    rows = of_type(facts, SampleRow)
    assert [row.numbers.get("busbw_gbps") for row in rows] == [16.37, 9.84, None]
    assert rows[0].numbers["busbw_gbps_2"] == 16.52
    assert rows[2].numbers == {"average_busbw_gbps": 13.15}
    assert [(one.speaker.rank, one.speaker.host, one.speaker.gpu) for one in of_type(facts, Membership)] == [
        (0, "node-a", "0000:04:00"),
        (1, "node-b", "0000:05:00"),
    ]


def test_perftest_names_its_columns(tmp_path: Path) -> None:
    text = (
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        " 65536      5000             181.2              180.0\t\t     0.34\n"
    )
    (row,) = of_type(facts_of(tmp_path, text), SampleRow)
    assert row.numbers["bw_average_gbps"] == 180.0
    assert row.numbers["msgrate_mpps"] == 0.34


def test_top_and_ps_say_which_rank_uses_the_processors(tmp_path: Path) -> None:
    text = (
        "top - 10:00:00 up 5 days,  3 users,  load average: 31.20, 30.00, 29.00\n"
        "    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND\n"
        "   9001 user      20   0   90.1g   2.0g   1.1g R 400.0   1.0  10:00.00 python train.py --rank=2\n"
        "   9107 user      20   0    1.1g   0.1g   0.1g R 100.0   0.1   1:00.00 tokenize\n"
    )
    load, trainer, other = of_type(facts_of(tmp_path, text, "node-b-top.txt"), SampleRow)
    assert load.numbers == {"load": 31.2}
    assert (trainer.speaker.rank, trainer.numbers["cpu_percent"]) == (2, 400.0)
    assert (other.speaker.rank, other.speaker.pid, other.speaker.host) == (None, 9107, "node-b")


def test_queues_of_a_device(tmp_path: Path) -> None:
    (row,) = of_type(
        facts_of(tmp_path, "gpu 1: util 100%, hsa_queue[2] write_ptr=9 read_ptr=4 pending=5 x=none\n"),
        SampleRow,
    )
    assert row.numbers == {"gpu": 1, "queue": 2, "util": 100, "write_ptr": 9, "read_ptr": 4, "pending": 5}


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("host/node-b-top.txt", "node-b"),
        ("trace-node-a.out", "node-a"),
        ("dmesg/node-05.log", "node-05"),
        ("node3_dmesg.txt", "node3"),
        ("host-gpu17.log", "host-gpu17"),
        ("dmesg/node.log", ""),
        ("nodebench.jsonl", ""),
    ],
)
def test_hosts_in_names_of_files(name: str, host: str) -> None:
    assert hint_of(name).host == host
