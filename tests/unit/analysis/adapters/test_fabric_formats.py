"""Every wording of NCCL's network warnings, refusals, and of the kernel's log of GPUs and adapters."""

from pathlib import Path

import pytest

from paceline.analysis.adapters.kernel_amd import BY_PORT
from paceline.analysis.facts import (
    DeviceEvent,
    NetworkFailure,
    NetworkKind,
    ProcessFault,
    ProcessFaultKind,
    SampleRow,
    SettingSeen,
)
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type


@pytest.mark.parametrize(
    ("text", "kind", "device", "peer"),
    [
        ("NET/IB : Got async event : port error", NetworkKind.PORT, "", ""),
        ("NET/IB : mlx5_0:1 Got async event : local access violation work queue error", NetworkKind.PORT,
         "mlx5_0", ""),
        ("NET/IB : mlx5_1:1 async fatal event on QP (0x7309dc3bb338): invalid request local work queue error",
         NetworkKind.PORT, "mlx5_1", ""),
        ("NET/IB : mlx5_1:1 async fatal event: port error", NetworkKind.PORT, "mlx5_1", ""),
        ("NET/IB : Unable to open device erdma_1", NetworkKind.OPEN, "erdma_1", ""),
        ("socketProgress: Connection closed by remote peer 10.0.0.7<40211>", NetworkKind.CLOSED, "",
         "10.0.0.7<40211>"),
        ("Net : Call to recv from 10.0.0.7<41468> failed : Connection reset by peer", NetworkKind.CLOSED, "",
         "10.0.0.7<41468>"),
        ("Net : Call to recv from 10.0.0.7<41468> failed : Connection timed out", NetworkKind.TIMEOUT, "",
         "10.0.0.7<41468>"),
        ("socketStartConnect: Connect to 10.0.0.7<38007> failed : No route to host", NetworkKind.TIMEOUT, "",
         "10.0.0.7<38007>"),
        ("NET/Socket : peer 10.0.0.2 message truncated : receiving 1048576 bytes instead of 524288",
         NetworkKind.TRUNCATED, "", ""),
        ("NET/OFI Request 0x7f3c completed with error. RC: 113. Error: 4119 (Unresponsive receiver)",
         NetworkKind.COMPLETION, "", ""),
        ("NET/OFI Request 0x7f3c completed with error. RC: 5. Error: 14 (Unresponsive receiver My host "
         "id: i-0a Peer EFA addr: fi_addr_efa://[fe80::b8]:0:9 Peer host id: i-0b). Completed length: 0",
         NetworkKind.COMPLETION, "", "i-0b"),
    ],
)  # fmt: skip
def test_network_warnings(tmp_path: Path, text: str, kind: NetworkKind, device: str, peer: str) -> None:
    (failure,) = of_type(facts_of(tmp_path, f"n1:815:864 [3] x.cc:1 NCCL WARN {text}\n"), NetworkFailure)
    assert (failure.kind, failure.device, failure.peer) == (kind, device, peer)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
         "shared_memory"),
        ("Error while creating shared memory segment /dev/shm/nccl-fjwOOB (size 5967872)", "shared_memory"),
        ("Call to posix_fallocate failed : No space left on device", "shared_memory"),
        ("Call to ibv_modify_qp failed with error Network is unreachable", "queue_pair"),
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next "
         "state RTR, local GID index 3", "queue_pair"),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "registration"),
        ("Call to ibv_create_qp failed with error Cannot allocate memory", "registration"),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the "
         "operation cannot be performed in the present state'.", "multicast"),
        ("hipIpcGetMemHandle failed : invalid argument", "handle"),
        ("Cuda failure 802 'system not yet initialized'", "driver"),
    ],
)  # fmt: skip
def test_refusals_at_setup(tmp_path: Path, text: str, kind: str) -> None:
    facts = of_type(facts_of(tmp_path, f"n1:8:9 [3] misc/x.cc:88 NCCL WARN {text}\n"), SettingSeen)
    (setting,) = (fact for fact in facts if fact.name == "setup_refused")
    assert (setting.name, setting.value, setting.speaker.host) == ("setup_refused", kind, "n1")


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("include/alloc.h:245", "Cuda failure 2 'out of memory'", ProcessFaultKind.CUDA_MEMORY),
        ("enqueue.cc:1", "Cuda failure 700 'an illegal memory access was encountered'",
         ProcessFaultKind.CUDA_ILLEGAL),
        ("enqueue.cc:1", "Cuda failure 'uncorrectable ECC error encountered'", ProcessFaultKind.CUDA_ECC),
        ("enqueue.cc:1", "HIP failure 'unspecified launch failure'", ProcessFaultKind.CUDA_OTHER),
    ],
)  # fmt: skip
def test_errors_of_cuda_inside_nccl(tmp_path: Path, file: str, text: str, kind: ProcessFaultKind) -> None:
    faults = of_type(facts_of(tmp_path, f"n1:8:9 [3] {file} NCCL WARN {text}\n"), ProcessFault)
    assert {fault.kind for fault in faults} == {kind}


@pytest.mark.parametrize(
    ("line", "code", "gpu", "link", "severity"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, pid=0, GPU has fallen off the bus.", 79, "0000:9b:00", None, ""),
        ("NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception", 13,
         "0000:cb:00", None, ""),
        ("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)", 145,
         "0018:01:00", 13, "Nonfatal"),
        ("NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)", 149,
         "0019:01:00", None, "Fatal"),
        ("NVRM: Xid (PCI:0000:1b:00 GPU-I:02): 94, pid=7, name=python3, Contained: CE User Channel", 94,
         "0000:1b:00", None, ""),
        ("NVRM: Xid (0000:1b:00): 48, Double Bit ECC Error", 48, "0000:1b:00", None, ""),
        ("NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.", 79, "0000:09:00", None, ""),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
         12028, "0000:05:00", 32, "Nonfatal"),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 62 LTSSM Fault Up", 20034,
         "0000:c1:00", 62, "Fatal"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[1084456.074562] ",
        "[Fri Aug 30 11:43:09 2024] ",
        "Aug 30 11:43:09 n7 kernel: ",
        "Aug 30 11:43:09 n7 kernel: [84456.074562] ",
        "2024-08-30T11:43:09.123456+00:00 n7 kernel: ",
        "kern  :err   : [84456.074562] ",
        "kern  :err   : [Fri Aug 30 11:43:09 2024] ",
        "192.168.11.119: kern: warning: [2026-04-22T21:30:51.52643656Z]: ",
        "3,2207,84456074562,-;",
        "Aug 30 11:43:09.123456 n7 kernel: ",
        "messages:Aug 30 11:43:09 n7 kernel: ",
    ],
)
def test_events_of_the_kernel(
    tmp_path: Path, prefix: str, line: str, code: int, gpu: str, link: int | None, severity: str
) -> None:
    (event,) = of_type(facts_of(tmp_path, prefix + line + "\n"), DeviceEvent)
    assert (event.code, event.speaker.gpu, event.link, event.severity) == (code, gpu, link, severity)
    assert event.is_switch == ("SXid" in line)
    assert (event.time_s is None) == (prefix == "")
    assert event.speaker.host == ("n7" if "n7" in prefix else event.speaker.host)


@pytest.mark.parametrize(
    ("line", "label", "follows"),
    [
        ("amdgpu 0000:c6:00.0: amdgpu: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
         "uncorrectable hardware error", False),
        ("amdgpu 0000:c6:00.0: amdgpu: socket: 6, die: 0, 1 uncorrectable hardware errors detected in umc "
         "block", "uncorrectable hardware error", False),
        ("amdgpu 0000:c6:00.0: amdgpu: ring sdma0 timeout, signaled seq=1, emitted seq=3", "ring timeout",
         False),
        ("amdgpu 0000:c6:00.0: amdgpu: GPU reset begin!. Source:  3", "reset", True),
        ("amdgpu 0000:c6:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770)",
         "page fault", False),
        ("amdgpu 0000:c6:00.0: amdgpu: device lost from bus!", "lost from the bus", False),
        ("pcieport 0000:c0:01.1: AER: Uncorrected (Fatal) error received: 0000:c6:00.0", BY_PORT, False),
        ("nvidia 0000:c6:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
         "PCIe error (fatal)", False),
    ],
)  # fmt: skip
def test_events_of_other_drivers(tmp_path: Path, line: str, label: str, follows: bool) -> None:
    (event,) = of_type(facts_of(tmp_path, f"[500967.571516] {line}\n"), DeviceEvent)
    assert (event.label, event.follows, event.code) == (label, follows, 0)
    assert event.speaker.gpu == "0000:c6:00"


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c6:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c6:00.0: {1}[Hardware Error]: Accelerator Check Architecture events logged",
        "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
        "nvidia 0000:c6:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    ],
)
def test_what_is_corrected_is_no_event(tmp_path: Path, line: str) -> None:
    assert not of_type(facts_of(tmp_path, f"[500967.571516] {line}\n"), DeviceEvent)


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("mlx5_core 0000:5e:00.0 ens5f0np0: Link down", "ens5f0np0 0000:5e:00.0"),
        ("mlx5_core 0000:5e:00.0: device's health compromised - reached miss count", "0000:5e:00.0"),
        ("mlx5_core 0000:cb:00.0: Port module event[error]: module 0, Cable error, Power budget exceeded",
         "0000:cb:00.0"),
        ("bnxt_en 0000:1d:00.0 ens1f0np0: NIC Link is Down", "ens1f0np0 0000:1d:00.0"),
        ("mlx5_core 0000:5e:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
         "0000:5e:00.0"),
    ],
)  # fmt: skip
def test_adapters_that_fail(tmp_path: Path, line: str, device: str) -> None:
    (failure,) = of_type(facts_of(tmp_path, f"Sep  3 01:00:41 n7 kernel: {line}\n"), NetworkFailure)
    assert (failure.kind, failure.device, failure.speaker.host) == (NetworkKind.PORT, device, "n7")


@pytest.mark.parametrize(
    "line", ["mlx5_core 0000:5e:00.0 ens5f0np0: Link up", "mlx5_core 0000:5e:00.0: assert_var[0] 0x00000001"]
)
def test_adapters_that_are_well(tmp_path: Path, line: str) -> None:
    assert not of_type(facts_of(tmp_path, f"Sep  3 01:00:41 n7 kernel: {line}\n"), NetworkFailure)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("NIC statistics:\n     rx_packets: 5\n     rx_symbol_err_phy: 77\n", "rx_symbol_err_phy", 77),
        ("# Port counters: Lid 12 port 1\nSymbolErrorCounter:..............77\n", "symbol_error_counter", 77),
        ('Errors for 0x5 "n2 mlx5_2"\n   GUID 0x5 port 1: [LinkDownedCounter == 77]\n', "link_downed_counter",
         77),
        ("GPU 5: NVIDIA H100\n\t Link 3: Replay Errors: 77\n", "nvlink_replay_errors_link_3", 77),
    ],
)  # fmt: skip
def test_error_counters_of_ports(tmp_path: Path, text: str, name: str, value: float) -> None:
    rows = [row for row in of_type(facts_of(tmp_path, text), SampleRow) if row.kind == "network"]
    assert [row.numbers for row in rows] == [{name: value}]


@pytest.mark.parametrize(
    ("text", "name", "index"),
    [
        ("GPU 3: NVIDIA H100\n\t Link 0: 26.562 GB/s\n\t Link 5: <inactive>\n", "nvlink_down", 3),
        ("GPU 3: NVIDIA B200\nNVML: Unable to retrieve NVLink information as all links are inActive\n",
         "nvlink_down", 3),
        ("    gpuId 3:\n        U U U D U U\n", "nvlink_down", 3),
        ("| GPU Memory      | Fail - GPU: 3        |\n", "health_failure", 3),
        ("| Health Monitor Report  |\n| -> 3                | Failure             |\n"
         "|    | GPU 3's NvLink link 5 is currently down |\n", "health_failure", 3),
    ],
)  # fmt: skip
def test_states_of_gpus(tmp_path: Path, text: str, name: str, index: int) -> None:
    (setting,) = (s for s in of_type(facts_of(tmp_path, text), SettingSeen) if s.name != "nvlink_up")
    assert (setting.name, setting.speaker.local_rank) == (name, index)


def test_an_entry_of_the_journal_in_json(tmp_path: Path) -> None:
    text = (
        '{"__REALTIME_TIMESTAMP":"1756696361000000","_HOSTNAME":"nd5","MESSAGE":"NVRM: Xid '
        '(PCI:0000:d1:00): 48, Double Bit ECC Error"}\n'
    )
    (event,) = of_type(facts_of(tmp_path, text * 2), DeviceEvent)[:1]
    assert (event.code, event.speaker.host, event.time_s) == (48, "nd5", 1756696361.0)


@pytest.mark.parametrize(
    ("text", "name", "value", "gpu"),
    [
        ("GPU 00000000:52:00.0\n  GPU Link Info\n    Link Width\n      Max    : 16x\n      Current   : 4x\n",
         "pcie_width", "PCIe link x4 of x16", "0000:52:00"),
        ("|   5  NVIDIA H100 80GB HBM3          On  |   00000000:C3:00.0 Off |                 ERR! |\n",
         "gpu_unreadable", "ERR!", "0000:c3:00"),
        ("Unable to determine the device handle for GPU0000:C3:00.0: GPU is lost.  Reboot the system\n",
         "gpu_lost", "lost", "0000:c3:00"),
        ('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3",pci_bus_id="00000000:C3:00.0",Hostname="n2"} 1\n',
         "remap_failed", "1", "0000:c3:00"),
        ("Node #2   - 10.4.3.13       - UNAVAILABLE          - Version: 580.82\n", "imex_node",
         "10.4.3.13 UNAVAILABLE", ""),
        ("Nov 02 08:10:01 n2 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.\n",
         "fabric_service", "fabric manager failed", ""),
        ("Sep 01 03:16:02 n2 kernel: Linux version 5.15.0-1053-nvidia (buildd@lcy02)\n", "boot",
         "Linux version 5.15.0-1053-nvidia (buildd@lcy02)", ""),
    ],
)  # fmt: skip
def test_states_of_a_machine(tmp_path: Path, text: str, name: str, value: str, gpu: str) -> None:
    (setting,) = of_type(facts_of(tmp_path, text), SettingSeen)
    assert (setting.name, setting.value, setting.speaker.gpu) == (name, value, gpu)


def test_the_last_xid_of_metrics(tmp_path: Path) -> None:
    line = 'DCGM_FI_DEV_XID_ERRORS{{gpu="3",pci_bus_id="00000000:61:00.0",Hostname="n2"}} {}\n'
    text = line.format(0) + line.format(79)
    (event,) = of_type(facts_of(tmp_path, text), DeviceEvent)
    assert (event.code, event.speaker.gpu, event.speaker.host) == (79, "0000:61:00", "n2")
