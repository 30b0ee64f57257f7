"""The kernel's log: what lines mean, and that each is read once, also after a restart."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.agent import kernel_log
from paceline.agent.findings import Found
from paceline.agent.kernel_log import KernelLog, Machine, Position, Record, judge_records, parse_kmsg
from paceline.contracts.registry import HealthKind

MACHINE = Machine({"0000:9b:00": 0, "0000:9c:00": 1}, {"0000:3b:00": "mlx5_0"})
XID = "NVRM: Xid (PCI:0000:9c:00): {code}, pid=4242, name=python, {rest}"


def found(*lines: str) -> list[Found]:
    return list(
        judge_records([Record(line, str(at), 7.0) for at, line in enumerate(lines)], MACHINE, Counter())
    )


class TestMeaning:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            (XID.format(code=79, rest="GPU has fallen off the bus."), (HealthKind.XID, 1, 79, "")),
            (XID.format(code=95, rest="Uncontained ECC error"), (HealthKind.XID, 1, 95, "")),
            ("NVRM: Xid (PCI:0000:f1:00): 48, double bit", (HealthKind.XID, None, 48, "0000:f1:00")),
            ("NVRM: GPU at PCI:0000:9b:00: GPU has fallen off the bus.", (HealthKind.XID, 0, 79, "")),
            ("nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault",
             (HealthKind.NVLINK, None, 20034, "nvswitch3")),
            ("nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 22013, Non-fatal, Link 46 MINION Link DLREQ",
             (HealthKind.LINK_ERRORS, None, 22013, "nvswitch3")),
            ("mlx5_core 0000:3b:00.0: mlx5_health_check: fatal error detected: health compromised",
             (HealthKind.LINK, None, None, "mlx5_0")),
            ("mlx5_core 0000:3b:00.0: High Temperature on sensors",
             (HealthKind.LINK_ERRORS, None, None, "mlx5_0")),
            ("mlx5_core 0000:77:00.0 eth2: Link down",
             (HealthKind.LINK_ERRORS, None, None, "eth2 0000:77:00.0")),
        ],
    )  # fmt: skip
    def test_faults(self, line: str, expected: tuple[Any, ...]) -> None:
        (event,) = found(line)
        assert (event.kind, event.gpu, event.code, event.device) == expected
        assert (event.at_unix_s, event.source) == (7.0, "0")
        assert event.pid is None  # the process in an Xid used the GPU; it is not to blame

    def test_a_process_killed_for_memory_is_named(self) -> None:
        (event,) = found("Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:2kB")
        assert (event.kind, event.pid) == (HealthKind.HOST_MEMORY, 4242)
        assert "python" in event.message

    @pytest.mark.parametrize(
        "line",
        [
            "usb 1-1: new high-speed USB device",
            "mlx5_core 0000:3b:00.0 ib0: Link down",  # its port says so
            "mlx5_core 0000:3b:00.0 ib0: Link up",
            XID.format(code=154, rest="GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)"),
            "amdgpu 0000:9b:00.0: amdgpu: GPU reset begin!",
            "Xid (", "NVRM: Xid (PCI:", "oom-kill:", "SXid", "x" * 9000, "",
        ],
    )  # fmt: skip
    def test_no_faults(self, line: str) -> None:
        assert found(line) == []


class Ring:
    """/dev/kmsg as a socket pair: a read gives one record, and none blocks."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.records: list[bytes | type[OSError]] = []
        self.read: list[bytes | type[OSError]] = []
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        (root / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
        (root / "proc/uptime").write_text("1000.0 3000.0\n")
        monkeypatch.setattr(KernelLog, "_open", lambda log: True)
        monkeypatch.setattr("paceline.agent.kernel_log.os.read", self._read)

    def say(self, sequence: int, text: str, at_s: float = 990.0) -> None:
        record = f"3,{sequence},{int(at_s * 1e6)},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:9c:00.0\n"
        self.records.append(record.encode())
        self.read = list(self.records)

    def _read(self, descriptor: int, size: int) -> bytes:
        if not self.read:
            raise BlockingIOError
        record = self.read.pop(0)
        if isinstance(record, bytes):
            return record
        raise record

    def open(self, position: Position) -> KernelLog:
        """A new agent: it reads the ring from its oldest record."""
        self.read = list(self.records)
        return KernelLog(self.root, position, lambda: 1000.0, lambda: 5000.0)


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ring:
    return Ring(tmp_path, monkeypatch)


class TestRing:
    def test_each_record_once_also_after_a_restart(self, ring: Ring) -> None:
        position = Position()
        ring.say(10, "first")
        ring.say(11, "second")
        log = ring.open(position)
        assert [(r.text, r.name, r.at_unix_s) for r in log.poll()] == [
            ("first", "boot-1:10", 4990.0), ("second", "boot-1:11", 4990.0),
        ]  # fmt: skip
        assert log.poll() == []
        ring.say(12, "while the agent was away")
        assert [r.text for r in ring.open(position).poll()] == ["while the agent was away"]
        (ring.root / "proc/sys/kernel/random/boot_id").write_text("boot-2\n")
        ring.records.clear()
        ring.say(3, "after a boot the numbers begin anew")
        assert [r.name for r in ring.open(position).poll()] == ["boot-2:3"]

    def test_a_first_start_leaves_what_is_old(self, ring: Ring) -> None:
        ring.say(1, "days ago", at_s=10.0)
        ring.say(2, "just now")
        assert [r.text for r in ring.open(Position()).poll()] == ["just now"]

    def test_what_was_overwritten_is_counted(self, ring: Ring) -> None:
        ring.say(8, "left")
        ring.records.insert(0, BrokenPipeError)
        log = ring.open(Position())
        assert [r.text for r in log.poll()] == ["left"]
        assert log.lost == 1

    def test_a_storm_takes_several_polls(self, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernel_log, "RECORDS_MAX", 3)
        for sequence in range(5):
            ring.say(sequence, "x")
        log = ring.open(Position())
        assert [len(log.poll()) for _ in range(3)] == [3, 2, 0]

    @pytest.mark.parametrize(
        "data", [b"", b"\n", b"3,1", b"3,a,5,-;x", b"3,1;x", b"\xff" * 90, b"3," + b"9" * 40]
    )
    def test_garbage_is_no_record(self, data: bytes) -> None:
        assert parse_kmsg(data, "b", 0.0) is None


class TestFile:
    """Where /dev/kmsg may not be read."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "var/log/kern.log"
        path.parent.mkdir(parents=True)
        path.write_text("Nov 30 06:00:00 n1 kernel: old\n")
        return path

    def test_from_its_end_on_and_each_line_once(self, tmp_path: Path, file: Path) -> None:
        position = Position()
        assert KernelLog(tmp_path, position, lambda: 0.0, lambda: 0.0).poll() == []
        with file.open("a") as out:
            out.write("one\nhalf a li")
        log = KernelLog(tmp_path, position, lambda: 0.0, lambda: 0.0)
        assert [r.text for r in log.poll()] == ["one"]
        with file.open("a") as out:
            out.write("ne\n")
        again = KernelLog(tmp_path, position, lambda: 0.0, lambda: 0.0)
        assert [r.text for r in again.poll()] == ["half a line"]
        assert again.poll() == []

    def test_a_rotated_file_is_read_from_its_start(self, tmp_path: Path, file: Path) -> None:
        log = KernelLog(tmp_path, Position(), lambda: 0.0, lambda: 0.0)
        log.poll()
        file.rename(file.with_suffix(".1"))
        file.write_text("new\n")
        assert [r.text for r in log.poll()] == ["new"]
        file.write_text("")
        log.poll()
        file.write_text("x\n")
        assert [r.text for r in log.poll()] == ["x"]

    def test_a_line_without_an_end_is_bounded(
        self, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kernel_log, "FILE_BYTES_MAX", 100)
        log = KernelLog(tmp_path, Position(), lambda: 0.0, lambda: 0.0)
        log.poll()
        with file.open("a") as out:
            out.write("y" * 250 + "\nlast\n")
        read = [r.text for _ in range(4) for r in log.poll()]
        assert read == ["y" * 100, "y" * 100, "y" * 50, "last"]
        assert log.lost == 2

    def test_nothing_readable_is_no_error(self, tmp_path: Path) -> None:
        log = KernelLog(tmp_path / "absent", Position(), lambda: 0.0, lambda: 0.0)
        assert log.poll() == []
        assert log.source == ""


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg may not be read here")
def test_the_real_ring_does_not_block() -> None:
    position = Position()
    log = KernelLog(Path("/"), position, lambda: kernel_log.read_uptime_s(Path("/")), lambda: 0.0)
    try:
        log.poll()
        assert log.source == "/dev/kmsg"
        assert position.sequence >= 0
    except OSError:
        pytest.skip("the kernel gives no records here")
    finally:
        log.close()
