"""Every generation of NCCL's lines, the kernel's and torchelastic's, as tools really wrote them."""

from pathlib import Path

import pytest

from paceline.analysis.facts import CallSeen, DeviceEvent, NetworkFailure, NetworkKind, ProcessEnd
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

GOT = "Got completion from peer 10.1.0.9<44206> with "


@pytest.mark.parametrize(
    ("line", "device"),
    [
        (f"NET/IB : {GOT}error 12, opcode 0, len 0, vendor err 129", ""),  # 2.10, 2.14
        (
            f"NET/IB : {GOT}error 12, opcode 0, len 0, vendor err 129 (Recv) localGid a remoteGid b",
            "",
        ),  # 2.18
        (
            f"NET/IB : {GOT}status=12 opcode=32552 len=0 vendor err 129 (Recv) localGid a remoteGidsb",
            "",
        ),  # 2.20
        (
            f"NET/IB: {GOT}status=12 opcode=0 len=0 vendor err 129 (Recv) localGid a remoteGidsb hca mlx5_4",
            "mlx5_4",
        ),
        (
            f"NET/IB: {GOT}status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=4 vendor_err=129 "
            f"req_type=Send localGid a remoteGids b hca mlx5_4",
            "mlx5_4",
        ),
        (
            f"NET/IB: {GOT}status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 "
            f"req_type=Send localGid a remoteGids b hca mlx5_4",
            "mlx5_4",
        ),
        (f"NET/IBP:{GOT}status=12 opcode=0 len=0 vendor err 129 hca mlx5_4", "mlx5_4"),  # a plugin
        (f"NET/IB/GIN: {GOT}status=12 opcode=0 len=0 vendor err 129 hca mlx5_4", "mlx5_4"),
    ],
)
@pytest.mark.parametrize("stamp", ["", "[2026-01-01 10:00:00] "])
def test_completions_of_every_version(tmp_path: Path, line: str, device: str, stamp: str) -> None:
    text = f"\n{stamp}node-a:100:110 [4] transport/net_ib.cc:1696 NCCL WARN {line}\n"
    (failure,) = of_type(facts_of(tmp_path, text), NetworkFailure)
    assert (failure.kind, failure.status, failure.device) == (NetworkKind.COMPLETION, 12, device)
    assert failure.peer == "10.1.0.9<44206>"
    assert (failure.speaker.host, failure.speaker.pid) == ("node-a", 100)


@pytest.mark.parametrize(
    ("line", "kind", "device"),
    [
        ("NET/IB : Got async event : port error", "port", ""),  # up to 2.19
        ("NET/IB : mlx5_4:1 Got async event : port error", "port", "mlx5_4"),  # 2.20
        ("NET/IB : mlx5_4:1 async fatal event: local catastrophic error", "port", "mlx5_4"),  # 2.23
        ("NET/IB : mlx5_4:1 async fatal event on QP: local work queue error", "port", "mlx5_4"),
        (
            "NET/IB : req 0/1 tag 3 peer 10.0.0.1<3> collective mismatch error, local size 4 remote size 8",
            "mismatch",
            "",
        ),
        (
            "NET/IB : peer 10.0.0.1<3> collective mismatch error local size 4 remote 8 addr 1 rkey 2",
            "mismatch",
            "",
        ),
        ("NET/Socket : peer 10.0.0.1<3> message truncated : receiving 8 bytes instead of 4", "truncated", ""),
        ("Net : Connection closed by remote peer node-b<3>", "closed", ""),
    ],
)
def test_events_and_sockets(tmp_path: Path, line: str, kind: str, device: str) -> None:
    text = f"node-a:100:110 [4] transport/net.cc:1 NCCL WARN {line}\n"
    (failure,) = of_type(facts_of(tmp_path, text), NetworkFailure)
    assert (failure.kind, failure.device) == (NetworkKind(kind), device)


def test_calls_count_in_hexadecimal(tmp_path: Path) -> None:
    text = (
        "node-a:100:110 [0] NCCL INFO AllReduce: opCount f7 sendbuff 0x1 recvbuff 0x2 count 1024 "
        "datatype 9 op 0 root 0 "
        "comm 0x55 [nranks=16] stream 0x66\n"
    )
    (call,) = of_type(facts_of(tmp_path, text), CallSeen)
    assert (call.work.function, call.work.sequence, call.work.count_in, call.work.dtype) == (
        "all_reduce",
        247,
        1024,
        "bfloat16",
    )
    assert (call.group.size, call.work.root) == (16, None)


@pytest.mark.parametrize(
    "stamp", ["[111.1] ", "[Sun Feb 23 16:24:18 2025] ", "Feb 23 16:24:18 node-a kernel: ", "19:14:43  "]
)
@pytest.mark.parametrize(
    ("line", "code", "gpu", "pid", "link", "severity", "recovery"),
    [
        (
            "NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x1",
            13,
            "0000:38:00",
            None,
            None,
            "",
            "",
        ),
        ("NVRM: Xid (PCI:0000:01:00): 31, GPU memory page fault", 31, "0000:01:00", None, None, "", ""),
        (
            "NVRM: Xid (PCI:0000:38:00): 43, pid=2924364, name=pt_main_thread, Ch 00000008",
            43,
            "0000:38:00",
            2924364,
            None,
            "",
            "",
        ),
        ("NVRM: Xid (0000:38:00): 48, pid=7, Double Bit ECC Error", 48, "0000:38:00", 7, None, "", ""),
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            79,
            "0000:05:00",
            None,
            None,
            "",
            "",
        ),
        ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", 79, "0000:18:00", None, None, "", ""),
        ("NVRM: GPU at PCI:0000:18:00: GPU has fallen off the bus", 79, "0000:18:00", None, None, "", ""),
        (
            "NVRM: Xid (PCI:0000:04:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 07 (0x3 0x8)",
            145,
            "0000:04:00",
            None,
            7,
            "Nonfatal",
            "",
        ),
        (
            "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 14 (0x025)",
            149,
            "0008:01:00",
            None,
            14,
            "Fatal",
            "",
        ),
        (
            "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain "
            "and Reset)",
            154,
            "0009:01:00",
            None,
            None,
            "",
            "Drain and Reset",
        ),
    ],
)
def test_xids_in_all_forms(
    tmp_path: Path,
    stamp: str,
    line: str,
    code: int,
    gpu: str,
    pid: int | None,
    link: int | None,
    severity: str,
    recovery: str,
) -> None:
    (event,) = of_type(facts_of(tmp_path, f"{stamp}{line}\n"), DeviceEvent)
    assert (event.code, event.speaker.gpu, event.speaker.pid, event.link) == (code, gpu, pid, link)
    assert (event.severity, event.recovery) == (severity, recovery)
    assert event.implied == ("Xid" not in line)


def test_a_gpu_off_the_bus_in_three_lines(tmp_path: Path) -> None:
    text = (
        "[111.9] NVRM: The NVIDIA GPU 0000:18:00.0\n               NVRM: (PCI ID: 10de:26b5) installed "
        "in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    (event,) = of_type(facts_of(tmp_path, text), DeviceEvent)
    assert (event.code, event.speaker.gpu, event.implied) == (79, "0000:18:00", True)


@pytest.mark.parametrize(("word", "severity"), [("Fatal", "Fatal"), ("Non-fatal", "Nonfatal")])
def test_switches_are_no_gpus(tmp_path: Path, word: str, severity: str) -> None:
    text = f"[112.5] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, {word}, Link 62 LTSSM Fault Up\n"
    (event,) = of_type(facts_of(tmp_path, text), DeviceEvent)
    assert (event.is_switch, event.code, event.link, event.severity) == (True, 20034, 62, severity)


def test_the_elastic_report_names_the_first_exit_that_an_agent_saw(tmp_path: Path) -> None:
    text = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-08-10_03:05:11\n  host      : "
        "node-b\n"
        "  rank      : 7 (local_rank: 3)\n  exitcode  : -6 (pid: 2608408)\n  error_file: <N/A>\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 2608408\n"
    )
    (end,) = of_type(facts_of(tmp_path, text), ProcessEnd)
    assert (end.speaker.rank, end.speaker.local_rank, end.speaker.pid, end.signal) == (7, 3, 2608408, 6)
    assert end.speaker.host == "node-b"
    assert end.called_first
