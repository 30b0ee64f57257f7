"""Network namespaces on one bridge; every directed rank-to-rank link is a class of its own.

Egress of each namespace is shaped by `htb` with one class per destination address, so a slow or cut
link is one direction of one pair and not the whole network card. Small packets (acknowledgements and
credits) overtake data in a class of their own: else a slow link would slow the opposite one as well,
because what is acknowledged there would wait behind its data.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.lab.processes import LabError

PREFIX = "plsk"
NETNS_FOLDER = Path("/run/netns")
INTERFACE = "eth0"
COMMAND_TIMEOUT_S = 20.0
CLONE_NEWNET = 0x40000000
CUT_RATE = "8bit"  # one byte a second: nothing that TCP could use passes
_DATA, _SMALL = 0x100, 0x200  # class minor numbers, plus the peer
_SHARE = "quantum 6000"  # bytes in turn; the kernel warns where it has to derive it
_SMALL_RATE_MBIT = 100.0
_SMALL_PACKET = "match u16 0 0xff00 at 2"  # IP length below 256


class Network:
    """Made by `make_network`. Ranks are numbered from 0."""

    def __init__(self, prefix: str, size: int, rate_mbit: float) -> None:
        self.prefix = prefix
        self.size = size
        self.rate_mbit = rate_mbit
        self._changed: set[tuple[int, int]] = set()
        self._down: set[int] = set()

    def namespace(self, rank: int) -> str:
        return f"{self.prefix}-{rank}"

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{self.prefix}-sw"

    def address(self, rank: int) -> str:
        return f"10.213.0.{rank + 1}"

    def create(self) -> None:
        """Namespaces, cables and shaping; LabError names the command that failed."""
        lines = [f"netns add {self.switch}", f"-n {self.switch} link add br0 type bridge"]
        for rank in range(self.size):
            name = self.namespace(rank)
            lines += [
                f"netns add {name}",
                f"-n {self.switch} link add p{rank} type veth peer name {INTERFACE} netns {name}",
            ]
        _run_each("ip", lines)
        inner = ["link set br0 up"]
        for rank in range(self.size):
            inner += [f"link set p{rank} master br0", f"link set p{rank} up"]
        _batch(["ip", "-n", self.switch], inner)
        for rank in range(self.size):
            self._configure(rank)

    def slow(self, source: int, target: int, rate_mbit: float) -> None:
        """Change the rate of the link from `source` to `target`."""
        # Bursts of at most one packet: else the first part of a round passes at full speed.
        self._set_rate(source, _DATA + target, f"rate {_bits(rate_mbit)} burst 2k cburst 2k")
        self._changed.add((source, target))

    def cut(self, source: int, target: int) -> None:
        """Let nothing pass from `source` to `target` any more."""
        for minor in (_DATA + target, _SMALL + target):
            self._set_rate(source, minor, f"rate {CUT_RATE} burst 2k cburst 2k")
        self._changed.add((source, target))

    def unplug(self, rank: int) -> None:
        """Take the whole network card of `rank` down."""
        _run(["ip", "-n", self.namespace(rank), "link", "set", INTERFACE, "down"])
        self._down.add(rank)

    def heal(self) -> None:
        """Undo every fault."""
        for rank in sorted(self._down):
            _run(["ip", "-n", self.namespace(rank), "link", "set", INTERFACE, "up"])
        for source in sorted({source for source, _ in self._changed}):
            # What waits in a cut class would wait for hours: new classes have empty queues.
            _run(["tc", "-n", self.namespace(source), "qdisc", "del", "dev", INTERFACE, "root"])
            self._shape(source)
        self._down.clear()
        self._changed.clear()

    def delete(self) -> None:
        """Remove every namespace; cables and shaping go with them. Never raises."""
        delete_namespaces(self.prefix)

    def _configure(self, rank: int) -> None:
        lines = [
            "link set lo up",
            f"addr add {self.address(rank)}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ]
        _batch(["ip", "-n", self.namespace(rank)], lines)
        self._shape(rank)

    def _shape(self, rank: int) -> None:
        device = f"dev {INTERFACE} parent 1:"
        lines = [
            f"qdisc add dev {INTERFACE} root handle 1: htb default 1",
            f"class add {device} classid 1:1 htb rate 1gbit {_SHARE}",
        ]
        for peer in (peer for peer in range(self.size) if peer != rank):
            to_peer = f"match ip dst {self.address(peer)}/32"
            data, small = f"1:{_DATA + peer:x}", f"1:{_SMALL + peer:x}"
            lines += [
                f"class add {device} classid {data} htb rate {_bits(self.rate_mbit)} "
                f"burst 8k cburst 8k {_SHARE}",
                f"class add {device} classid {small} htb rate {_bits(_SMALL_RATE_MBIT)} {_SHARE}",
                f"filter add {device} protocol ip prio 1 u32 {to_peer} {_SMALL_PACKET} flowid {small}",
                f"filter add {device} protocol ip prio 2 u32 {to_peer} flowid {data}",
            ]
        _batch(["tc", "-n", self.namespace(rank)], lines)

    def _set_rate(self, source: int, minor: int, rate: str) -> None:
        command = f"class change dev {INTERFACE} parent 1: classid 1:{minor:x} htb {rate} {_SHARE}"
        _run(["tc", "-n", self.namespace(source), *command.split()])


def _bits(rate_mbit: float) -> str:
    return f"{int(rate_mbit * 1e6)}bit"


@contextlib.contextmanager
def make_network(size: int, rate_mbit: float) -> Iterator[Network]:
    """A network of its own name, removed whatever happens; those of processes that are gone go first."""
    if os.geteuid() != 0:
        raise LabError("network namespaces need root; run this as root")
    sweep()
    network = Network(f"{PREFIX}{os.getpid()}", size, rate_mbit)
    try:
        network.create()
        yield network
    finally:
        network.delete()


def sweep() -> None:
    """Remove what an earlier run left behind when it was killed."""
    pids = {name[len(PREFIX) :].partition("-")[0] for name in _namespaces() if name.startswith(PREFIX)}
    for pid in pids:
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            delete_namespaces(f"{PREFIX}{pid}")


def delete_namespaces(prefix: str) -> None:
    """Remove the namespaces `prefix`-*; one that will not go is left to the next sweep."""
    for name in _namespaces():
        if name.startswith(f"{prefix}-"):
            subprocess.run(
                ["ip", "netns", "del", name], capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False
            )


def enter_namespace(name: str) -> None:
    """Move this process into a namespace; OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(NETNS_FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns to {name}: {os.strerror(number)}")
    finally:
        os.close(fd)


def _namespaces() -> list[str]:
    return sorted(path.name for path in NETNS_FOLDER.iterdir()) if NETNS_FOLDER.is_dir() else []


def _run_each(program: str, lines: Sequence[str]) -> None:
    for line in lines:
        _run([program, *line.split()])


def _batch(program: Sequence[str], lines: Sequence[str]) -> None:
    _run([*program, "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: Sequence[str], text: str = "") -> None:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[:500]}")
