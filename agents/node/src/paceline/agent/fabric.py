"""Ports of RDMA devices from sysfs, InfiniBand and RoCE: states, rates and error counters as differences.

Reading asks the adapter's firmware and can block with it: a thread of its own reads, one at a time, and
what does not come in time is said. What two readings mean is pure.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paceline.agent.findings import Found
from paceline.contracts.registry import HealthKind

PORTS_MAX = 64
FILE_BYTES_MAX = 256
COUNTERS = (
    "link_downed",
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "link_error_recovery",
    "port_xmit_discards",
)
# Of mlx5 and its like: messages that were not acknowledged, and queue pairs that gave up.
HARDWARE_COUNTERS = ("local_ack_timeout_err", "req_transport_retries_exceeded", "rnr_nak_retry_err")
# A poll with more than this is worth a word: single errors are corrected all the time. A bit error rate of
# 1e-12, at which vendors exchange cables, is 2 symbols in 10 s at 200 Gbit/s.
ERRORS_MIN = {
    "symbol_error": 10,
    "port_rcv_errors": 10,
    "port_xmit_discards": 1000,
    "local_ack_timeout_err": 10,
}
ACTIVE = "ACTIVE"
GONE = "GONE"  # our own word for a port whose device has vanished


class PortReason(str, Enum):
    WENT_DOWN = "port_down"
    GONE = "port_gone"
    CAME_BACK = "port_up"
    FLAPPED = "link_downed"
    SLOWER = "rate_reduced"
    ERRORS = "port_errors"
    NO_ANSWER = "ports_no_answer"


@dataclass(frozen=True)
class Port:
    """One port as sysfs shows it; counters that a device does not have are absent."""

    state: str  # ACTIVE, DOWN, INIT, ARMED; empty where it could not be read
    rate_gbps: float
    counters: dict[str, int]


def judge_ports(before: dict[str, Port], now: dict[str, Port]) -> tuple[Found, ...]:
    """What changed on all ports, by name."""
    return tuple(
        found
        for name in sorted({*before, *now})
        for found in judge_port(name, before.get(name), now.get(name))
    )


def remember_ports(before: dict[str, Port], now: dict[str, Port]) -> dict[str, Port]:
    """What the next reading is compared with: a port that could not be read stays as it was, one that is
    gone is gone until it is back."""
    gone = {
        name: Port(GONE, port.rate_gbps, port.counters) for name, port in before.items() if name not in now
    }
    read = {name: port if port.state else before.get(name, port) for name, port in now.items()}
    return dict(list({**read, **gone}.items())[: 2 * PORTS_MAX])


def judge_port(name: str, before: Port | None, now: Port | None) -> tuple[Found, ...]:
    """What changed. A port that never was active is not in use and says nothing."""
    if before is not None and before.state == ACTIVE and now is None:
        return (_found(HealthKind.LINK, PortReason.GONE, name, "is gone: its device has vanished"),)
    if before is None or now is None or not now.state:
        return ()
    found = []
    more = {
        counter: value - before.counters[counter]
        for counter, value in now.counters.items()
        if value > before.counters.get(counter, value)
    }
    if before.state == ACTIVE and now.state != ACTIVE:
        found.append(_found(HealthKind.LINK, PortReason.WENT_DOWN, name, f"is {now.state}"))
    elif before.state not in (ACTIVE, "") and now.state == ACTIVE:
        found.append(_found(HealthKind.LINK_BACK, PortReason.CAME_BACK, name, f"is {ACTIVE} again"))
    elif "link_downed" in more and now.state == ACTIVE:
        words = f"went down {more['link_downed']} times and is up again"
        found.append(_found(HealthKind.LINK, PortReason.FLAPPED, name, words))
    if now.state == before.state == ACTIVE and 0 < now.rate_gbps < before.rate_gbps:
        words = f"runs at {now.rate_gbps:g} instead of {before.rate_gbps:g} Gb/s"
        found.append(_found(HealthKind.LINK_ERRORS, PortReason.SLOWER, name, words))
    errors = [
        f"{counter} +{count}"
        for counter, count in more.items()
        if counter != "link_downed" and count >= ERRORS_MIN.get(counter, 1)
    ]
    if errors:
        found.append(_found(HealthKind.LINK_ERRORS, PortReason.ERRORS, name, ", ".join(errors)))
    return tuple(found)


def _found(kind: HealthKind, reason: PortReason, name: str, words: str) -> Found:
    return Found(kind, reason.value, f"{name} {words}", device=name)


def has_ports(root: Path) -> bool:
    """Whether this machine has RDMA devices at all: the kernel's own word, which no adapter can hold up."""
    return (root / "sys/class/infiniband").is_dir()


def read_ports(root: Path) -> dict[str, Port]:
    """Every port by `device/port`, at most PORTS_MAX; a device that vanishes meanwhile is left out."""
    ports: dict[str, Port] = {}
    for folder in sorted(_folders(root / "sys/class/infiniband")):
        for port in sorted(_folders(folder / "ports")):
            if len(ports) < PORTS_MAX:
                ports[f"{folder.name}/{port.name}"] = _read_port(port)
    return ports


def read_addresses(root: Path) -> dict[str, str]:
    """PCI address as `0000:3b:00` to RDMA device."""
    found = {}
    for folder in sorted(_folders(root / "sys/class/infiniband"))[:PORTS_MAX]:
        try:
            address = (folder / "device").resolve().name
        except OSError:
            continue
        if address.count(":") == 2:
            found[address.partition(".")[0].lower()] = folder.name
    return found


def read_gpu_addresses(root: Path) -> list[str]:
    """PCI addresses of the GPUs that a driver has, in the order of NVML's indices."""
    for driver in ("nvidia", "amdgpu"):
        names = [folder.name.lower() for folder in _folders(root / "sys/bus/pci/drivers" / driver)]
        if found := sorted(name.partition(".")[0] for name in names if name.count(":") == 2):
            return found[:PORTS_MAX]
    return []


def _folders(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _read_port(port: Path) -> Port:
    state = _text(port / "state").partition(":")[2].strip()  # "4: ACTIVE"
    rate = _text(port / "rate").split(" ")[0]  # "200 Gb/sec (4X HDR)"
    counters = {}
    for folder, names in (("counters", COUNTERS), ("hw_counters", HARDWARE_COUNTERS)):
        for name in names:
            text = _text(port / folder / name)
            if text.isdecimal() and len(text) < 20:
                counters[name] = int(text)
    try:
        rate_gbps = float(rate)
    except ValueError:
        rate_gbps = 0.0
    return Port(state, rate_gbps, counters)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError:
        return ""
