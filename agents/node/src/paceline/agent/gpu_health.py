"""What two samples of a GPU mean: pure, each finding with a named reason."""

from dataclasses import dataclass
from enum import Enum

from paceline.agent.findings import Found
from paceline.contracts.registry import HealthKind

# A kernel that spins on a flag: NCCL #2428 shows 100 % busy, memory 0 %, 118 of 400 W. Work that computes
# and leaves memory alone draws far more than this part of its limit.
SPIN_BUSY_PERCENT_MIN = 99
SPIN_MEMORY_PERCENT_MAX = 1
SPIN_POWER_PART_MAX = 0.45
SPIN_SAMPLES = 3  # in a row: a step may spin for a moment
THROTTLE_SAMPLES = 2
AGAIN_SAMPLES = 120  # what lasts is said again: 10 minutes at 5 s, more than two tellings are apart
# NVML's bits of what lowers clocks against the will of the owner; caps of software are the owner's.
THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
RECOVERY_ACTIONS = {
    1: "reset of the GPU", 2: "reboot of the node", 3: "drain of peer-to-peer", 4: "drain and reset",
    5: "recovery of the IMEX domain", 6: "reset of the bus", 7: "reboot of the system",
}  # fmt: skip
XID_RECOVERY_ACTION = 154  # what the kernel's log calls a change of the recovery action


class GpuReason(str, Enum):
    ECC_UNCORRECTED = "ecc_uncorrected"
    REMAP_FAILED = "remap_failed"
    NVLINK_FAILED = "nvlink_failed"
    NVLINK_RECOVERED = "nvlink_recovered"
    RECOVERY_ASKED = "recovery_asked"
    THROTTLED = "throttled"
    SPINNING = "spinning"


@dataclass(frozen=True)
class GpuSample:
    """One reading; None for what the GPU does not say."""

    busy_percent: int | None = None
    memory_percent: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    sm_mhz: int | None = None
    sm_mhz_max: int | None = None
    temperature_c: int | None = None
    throttle: int | None = None
    ecc_uncorrected: int | None = None
    remap_failures: int | None = None
    nvlink_recoveries: int | None = None
    nvlink_failures: int | None = None
    recovery_action: int | None = None


@dataclass(frozen=True)
class GpuRecord:
    """What is kept of a GPU between samples, also over a restart of the agent."""

    counts: dict[str, int]
    spinning: int = 0  # samples in a row
    throttled: int = 0


def judge_gpu(gpu: int, before: GpuRecord | None, now: GpuSample) -> tuple[GpuRecord, tuple[Found, ...]]:
    """The new record and what is to be told; a first sample is told nothing but its state."""
    counts = {name: value for name in _COUNTED if (value := getattr(now, name)) is not None}
    spinning = (before.spinning if before else 0) + 1 if is_spinning(now) else 0
    throttled = (before.throttled if before else 0) + 1 if throttle_words(now) else 0
    found = [] if before is None else _grown(gpu, before.counts, counts)
    if spinning % AGAIN_SAMPLES == SPIN_SAMPLES:
        found.append(_found(gpu, HealthKind.GPU_SPINNING, GpuReason.SPINNING, spin_words(now)))
    if throttled % AGAIN_SAMPLES == THROTTLE_SAMPLES:
        words = (
            f"{', '.join(throttle_words(now))} at {now.temperature_c} C, {now.sm_mhz} of {now.sm_mhz_max} MHz"
        )
        found.append(_found(gpu, HealthKind.THERMAL, GpuReason.THROTTLED, words))
    return GpuRecord({**(before.counts if before else {}), **counts}, spinning, throttled), tuple(found)


def is_spinning(now: GpuSample) -> bool:
    """Busy, no memory traffic, low power; not while the clocks are held down."""
    if now.busy_percent is None or now.memory_percent is None or throttle_words(now):
        return False
    if not now.power_mw or not now.power_limit_mw:
        return False
    low_power = now.power_mw <= SPIN_POWER_PART_MAX * now.power_limit_mw
    busy = now.busy_percent >= SPIN_BUSY_PERCENT_MIN
    return busy and now.memory_percent <= SPIN_MEMORY_PERCENT_MAX and low_power


def throttle_words(now: GpuSample) -> list[str]:
    return [words for bit, words in THROTTLES.items() if (now.throttle or 0) & bit]


def spin_words(now: GpuSample) -> str:
    return (
        f"a kernel spins: {now.busy_percent} % busy, memory {now.memory_percent} %, "
        f"{(now.power_mw or 0) // 1000} of {(now.power_limit_mw or 0) // 1000} W"
    )


_COUNTED = ("ecc_uncorrected", "remap_failures", "nvlink_recoveries", "nvlink_failures", "recovery_action")


def _grown(gpu: int, before: dict[str, int], now: dict[str, int]) -> list[Found]:
    """Counters that fell were reset with the driver: what they count begins again."""
    more = {name: value - before[name] for name, value in now.items() if value > before.get(name, value)}
    found = []
    if "ecc_uncorrected" in more:
        words = f"{more['ecc_uncorrected']} uncorrectable memory errors (ECC)"
        found.append(_found(gpu, HealthKind.ECC, GpuReason.ECC_UNCORRECTED, words))
    if "remap_failures" in more:
        words = "a memory row could not be remapped"
        found.append(_found(gpu, HealthKind.ECC, GpuReason.REMAP_FAILED, words))
    if "nvlink_failures" in more:
        words = f"{more['nvlink_failures']} NVLink recoveries failed"
        found.append(_found(gpu, HealthKind.NVLINK, GpuReason.NVLINK_FAILED, words))
    elif "nvlink_recoveries" in more:
        words = f"NVLink recovered {more['nvlink_recoveries']} times"
        found.append(_found(gpu, HealthKind.LINK_ERRORS, GpuReason.NVLINK_RECOVERED, words, device="nvlink"))
    action = RECOVERY_ACTIONS.get(now.get("recovery_action", 0))
    if action and now["recovery_action"] != before.get("recovery_action", 0):
        words = f"the driver asks for a {action}"
        found.append(_found(gpu, HealthKind.XID, GpuReason.RECOVERY_ASKED, words, code=XID_RECOVERY_ACTION))
    return found


def _found(
    gpu: int, kind: HealthKind, reason: GpuReason, message: str, code: int | None = None, device: str = ""
) -> Found:
    return Found(kind, reason.value, message, gpu=gpu, code=code, device=device)
