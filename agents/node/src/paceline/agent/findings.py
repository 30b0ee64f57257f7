"""What a watcher of devices has found, and whether it was told already."""

from collections import OrderedDict
from dataclasses import dataclass

from paceline.contracts.registry import HealthKind

TOLD_MAX = 1024
# A storm says the same thing thousands of times (800,000 lines of Xid 95 were 29 faults); two sources, NVML
# and the kernel's log, tell of one Xid within seconds.
REPEAT_S = 300.0


@dataclass(frozen=True)
class Found:
    """One finding of one source. `reason` is stable, for ids, counters and tests."""

    kind: HealthKind
    reason: str
    message: str
    gpu: int | None = None  # index on the node, in order of PCI addresses
    pid: int | None = None  # only where the process itself is hit
    code: int | None = None
    device: str = ""
    at_unix_s: float | None = None  # where the source dates it
    source: str = ""  # names the occasion where the source can: the same one is told once for ever

    @property
    def subject(self) -> str:
        """What two findings share that tell of one thing."""
        parts = (self.kind.value, self.gpu, self.code, self.device, self.pid)
        return "/".join("" if part is None else str(part) for part in parts)


class Told:
    """What was told and when, bounded. `times` is kept on disk."""

    def __init__(self) -> None:
        self.times: OrderedDict[str, float] = OrderedDict()  # subject: unix seconds
        self.repeats = 0

    def takes(self, found: Found, at_unix_s: float) -> bool:
        """Whether it is news; counts what is not."""
        last = self.times.get(found.subject)
        if last is not None and abs(at_unix_s - last) < REPEAT_S:
            self.repeats += 1
            return False
        self.times[found.subject] = max(at_unix_s, last or 0.0)
        self.times.move_to_end(found.subject)
        while len(self.times) > TOLD_MAX:
            self.times.popitem(last=False)
        return True

    def forget(self, kind: HealthKind, gpu: int | None, device: str) -> None:
        """It is over: the next one is news, however soon."""
        self.times.pop(Found(kind, "", "", gpu=gpu, device=device).subject, None)
