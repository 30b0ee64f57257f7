"""GPUs, kernel log and fabric ports of this node: what is found there becomes health events, each once.

Three watchers, none of which can hold the agent up: NVML is asked by a child, ports are read by a thread
of their own, the kernel's log without blocking. What was told, how far the log was read and the newest
counters are kept on disk, so a restart tells nothing twice and misses nothing that still can be seen.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from paceline.agent.aside import Aside
from paceline.agent.delivery import Event
from paceline.agent.fabric import (
    Port,
    PortReason,
    has_ports,
    judge_ports,
    read_addresses,
    read_gpu_addresses,
    read_ports,
    remember_ports,
)
from paceline.agent.findings import Found, Told
from paceline.agent.gpu_health import GpuRecord, GpuSample, judge_gpu
from paceline.agent.gpu_watch import GpuWatch
from paceline.agent.kernel_log import KernelLog, Machine, Position, judge_records, read_boot, read_uptime_s
from paceline.agent.roster import Roster
from paceline.agent.settings import AgentSettings
from paceline.agent.state_file import StateFile
from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.contracts.events import EventType
from paceline.contracts.ids import derived_id
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.topics import HEALTH
from paceline.runtime.app import BackgroundTasks
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, gauge

KERNEL_POLL_S = 1.0
PORTS_POLL_S = 5.0
PER_MINUTE_MAX = 120  # findings; what is beyond is dropped and counted
FAILED_S = 60.0
HELD_S = 2.0  # an Xid of NVML waits for the kernel's line, which says more
HELD_MAX = 64
log = get_logger(__name__)


@dataclass(frozen=True)
class _SavedPort:
    state: str
    rate_gbps: float
    counters: dict[str, int]


@dataclass(frozen=True)
class _Saved:
    """State of one boot: counters begin anew with the next one."""

    boot: str
    sequence: int
    inode: int
    offset: int
    told: dict[str, float]
    ports: dict[str, _SavedPort]
    gpus: dict[int, dict[str, int]]
    silent: list[int]


_ADAPTER = TypeAdapter(_Saved)


class Devices:
    """Starts and stops with the agent; hands events to `push`. `gpu_command` replaces the reader in tests."""

    def __init__(
        self,
        settings: AgentSettings,
        clock: Clock,
        roster: Roster,
        push: Callable[[Event], None],
        drops: Counter[str],
        *,
        gpu_command: tuple[str, ...] = (),
    ) -> None:
        self.found: Counter[str] = Counter()  # by reason, told or not
        self._settings = settings
        self._clock = clock
        self._roster = roster
        self._push = push
        self._drops = drops
        self._root = settings.root
        self._told = Told()
        self._recent_s: deque[float] = deque(maxlen=PER_MINUTE_MAX)
        self._held: deque[tuple[float, Found]] = deque()
        self._ports: dict[str, Port] = {}
        self._records: dict[int, GpuRecord] = {}
        self._addresses: list[str] = []  # of GPUs; the longest list seen: one off the bus is in none
        self._file = StateFile(settings.state_dir / "devices.json")
        self._boot = read_boot(self._root)
        self._position = Position()
        self._kernel = KernelLog(self._root, self._position, lambda: read_uptime_s(self._root), clock.unix_s)
        self.gpus = GpuWatch(
            clock, self._take_sample, self._take_found, interval_s=settings.gpu_interval_s,
            timeout_s=settings.gpu_timeout_s, command=gpu_command,
        )  # fmt: skip

    def start(self, tasks: BackgroundTasks) -> None:
        """Begin what the settings allow."""
        self._restore()
        if self._settings.watch_gpus:
            tasks.spawn("agent-gpus", self._keep("gpus", self.gpus.run))
        if self._settings.watch_kernel:
            tasks.spawn("agent-kernel-log", self._keep("kernel_log", self._watch_kernel))
        if self._settings.watch_ports:
            tasks.spawn("agent-ports", self._keep("ports", self._watch_ports))

    def close(self) -> None:
        """After the tasks have ended."""
        while self._held:
            self.tell(self._held.popleft()[1])
        self._kernel.close()
        self.save()

    # ------------------------------------------------------------------ watchers

    async def _keep(self, name: str, watch: Callable[[], Awaitable[None]]) -> None:
        """A watcher that fails is started again later, and the agent goes on."""
        while True:
            try:
                await watch()
            except Exception:
                self._drops["device_watch_failed"] += 1
                log.exception("device_watch_failed", watch=name)
            await self._clock.sleep(FAILED_S)

    async def _watch_kernel(self) -> None:
        self._look_at_addresses()
        said = None
        while True:
            records = self._kernel.poll()
            if records:
                told: Counter[str] = Counter()
                for found in judge_records(records, self._machine(), told):
                    self.tell(found)
                self.found.update(told)
                self.save()
            self._tell_held()
            if self._kernel.lost:
                self._drops["kernel_records_lost"] = self._kernel.lost
            if self._kernel.source != said:
                said = self._kernel.source
                log.info("kernel_log", source=said or "not readable: Xid come from NVML alone")
            await self._clock.sleep(KERNEL_POLL_S - self._clock.monotonic_ns() / 1e9 % KERNEL_POLL_S)

    async def _watch_ports(self) -> None:
        reader = Aside(lambda: read_ports(self._root))
        silent = False
        while True:
            # No thread where there is nothing to ask.
            ports = await reader.ask(self._settings.gpu_timeout_s) if has_ports(self._root) else {}
            if ports is None:
                if not silent:
                    words = f"sysfs gives no answer about ports within {self._settings.gpu_timeout_s:g} s"
                    self.tell(
                        Found(HealthKind.LINK_ERRORS, PortReason.NO_ANSWER.value, words, device="ports")
                    )
            else:
                for found in judge_ports(self._ports, ports):
                    self.tell(found)
                remembered = remember_ports(self._ports, ports)
                if remembered != self._ports:
                    self._ports = remembered
                    self.save()
            silent = ports is None
            await self._clock.sleep(PORTS_POLL_S)

    def _take_sample(self, gpu: int, sample: GpuSample) -> None:
        before = self._records.get(gpu)
        self._records[gpu], found = judge_gpu(gpu, before, sample)
        for each in found:
            self.tell(each)
        gauge("paceline.agent.gpus", len(self._records))
        if before is None or before.counts != self._records[gpu].counts:
            self.save()

    def _take_found(self, found: Found) -> None:
        if found.kind is HealthKind.XID and self._kernel.source and len(self._held) < HELD_MAX:
            self._held.append((self._clock.monotonic_ns() / 1e9 + HELD_S, found))
        else:
            self.tell(found)

    def _tell_held(self) -> None:
        now_s = self._clock.monotonic_ns() / 1e9
        while self._held and self._held[0][0] <= now_s:
            self.tell(self._held.popleft()[1])

    def _machine(self) -> Machine:
        self._look_at_addresses()
        named = {normal_pci(name.pci): name.index for name in self.gpus.state.names.values() if name.pci}
        by_order = {address: index for index, address in enumerate(self._addresses)}
        return Machine({**by_order, **named}, read_addresses(self._root))

    def _look_at_addresses(self) -> None:
        addresses = read_gpu_addresses(self._root)
        if len(addresses) > len(self._addresses):
            self._addresses = addresses

    # ------------------------------------------------------------------ telling

    def tell(self, found: Found) -> None:
        """Publish one finding, unless it was told lately or too many are."""
        at_unix_s = self._clock.unix_s() if found.at_unix_s is None else found.at_unix_s
        if not self._told.takes(found, at_unix_s):
            return
        now_s = self._clock.monotonic_ns() / 1e9
        if len(self._recent_s) == PER_MINUTE_MAX and now_s - self._recent_s[0] < 60.0:
            self._drops["device_findings"] += 1
            return
        self._recent_s.append(now_s)
        if found.kind is HealthKind.GPU_ANSWERS:
            self._told.forget(HealthKind.GPU_SILENT, found.gpu, found.device)
        elif found.kind is HealthKind.LINK_BACK:
            self._told.forget(HealthKind.LINK, found.gpu, found.device)
        elif found.kind in (HealthKind.GPU_SILENT, HealthKind.LINK):
            back = HealthKind.GPU_ANSWERS if found.kind is HealthKind.GPU_SILENT else HealthKind.LINK_BACK
            self._told.forget(back, found.gpu, found.device)
        log.warning(
            "device_found", reason=found.reason, gpu=found.gpu, code=found.code, message=found.message
        )
        self.found[found.reason] += 1
        count("paceline.agent.devices", reason=found.reason)
        for event in self._events(found, at_unix_s):
            topic_key = event.job or event.node
            self._push(Event(HEALTH, topic_key, EventType.HEALTH, event.id, event))

    def _events(self, found: Found, at_unix_s: float) -> list[HealthEvent]:
        """One for each rank that is hit, or each job of the node where nobody is named; and one of the node.

        A process that ended is hit, too: the fault may be what ended it.
        """
        occasion = found.source or f"{at_unix_s:.3f}"
        base = derived_id("hlt", self._settings.node, found.subject, occasion)
        events = [self._event(found, at_unix_s, base, "", "", None, None)]
        for job in self._roster.jobs.values():
            if job.superseded:
                continue
            processes = self._roster.of_job(job.key)
            hit = [
                process for process in processes if self._is_hit(found, process.shown_pid, process.hello.gpu)
            ]
            if hit:
                for process in hit:
                    name = derived_id("hlt", base, job.job, job.attempt, process.rank)
                    pid = process.shown_pid
                    events.append(
                        self._event(found, at_unix_s, name, job.job, job.attempt, process.rank, pid)
                    )
            elif found.pid is None:
                name = derived_id("hlt", base, job.job, job.attempt)
                events.append(self._event(found, at_unix_s, name, job.job, job.attempt, None, None))
        return events

    def _is_hit(self, found: Found, pid: int, gpu: int | None) -> bool:
        if found.pid is not None:
            return pid == found.pid
        if found.gpu is None:
            return False
        # What NVML sees on the GPU is better than what the launcher meant.
        return self.gpus.state.pids.get(pid, gpu) == found.gpu

    def _event(
        self,
        found: Found,
        at_unix_s: float,
        name: str,
        job: str,
        attempt: str,
        rank: int | None,
        pid: int | None,
    ) -> HealthEvent:
        return HealthEvent(
            id=name, kind=found.kind, node=self._settings.node, job=job, attempt=attempt, rank=rank,
            pid=found.pid if pid is None else pid, at_unix_s=at_unix_s, gpu=found.gpu, code=found.code,
            message=found.message[:500], device=found.device,
        )  # fmt: skip

    # ------------------------------------------------------------------ state

    def save(self) -> None:
        """Keep what a restart needs."""
        position = self._position
        saved = _Saved(
            self._boot, position.sequence, position.inode, position.offset, dict(self._told.times),
            {name: _SavedPort(p.state, p.rate_gbps, p.counters) for name, p in self._ports.items()},
            {gpu: record.counts for gpu, record in self._records.items()},
            [gpu for gpu in self.gpus.state.silent if gpu is not None],
        )  # fmt: skip
        self._file.write(_ADAPTER.dump_json(saved))
        if self._file.failures:
            self._drops["device_state_file"] = self._file.failures

    def _restore(self) -> None:
        try:
            saved = _ADAPTER.validate_json(self._file.read() or b"null")
        except ValidationError:
            return
        self._position.inode, self._position.offset = saved.inode, saved.offset
        if saved.boot != self._boot:
            return
        self._position.boot, self._position.sequence = saved.boot, saved.sequence
        self._told.times.update(saved.told)
        self._ports = {name: Port(p.state, p.rate_gbps, p.counters) for name, p in saved.ports.items()}
        self._records = {gpu: GpuRecord(counts) for gpu, counts in saved.gpus.items()}
        now_s = self._clock.monotonic_ns() / 1e9
        self.gpus.state.silent.update(dict.fromkeys(saved.silent, now_s))
