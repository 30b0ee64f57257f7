"""The agent as one app: socket, sampler, devices, delivery."""

import asyncio
import resource
from collections import Counter

from paceline.agent.admission import job_owner
from paceline.agent.delivery import Deliverer, Event, EventQueue, Frame, FrameQueue, Publisher
from paceline.agent.devices import Devices
from paceline.agent.disk_ring import DiskRing, Ring
from paceline.agent.event_file import EventFile
from paceline.agent.graves import GravesFile
from paceline.agent.nccl_dumps import NcclDumps
from paceline.agent.nccl_logs import NcclLogs
from paceline.agent.orders import Orders
from paceline.agent.outbox import Outbox
from paceline.agent.pages import open_page
from paceline.agent.process import ProcReader
from paceline.agent.processes import OpenPage, Process
from paceline.agent.reception import Reception
from paceline.agent.roster import Roster
from paceline.agent.roster_file import RosterFile
from paceline.agent.sampler import Sampler
from paceline.agent.settings import AgentSettings
from paceline.agent.socket_server import SocketServer
from paceline.agent.supervisors import Supervisors
from paceline.runtime.app import BackgroundTasks, Readiness
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, gauge

log = get_logger(__name__)
METRICS_PERIOD_NS = 5_000_000_000  # far below what a scraper waits between two looks


class AgentApp:
    """Observes the training processes of this machine. Starts and samples with Kafka absent."""

    name = "agent"

    def __init__(
        self,
        settings: AgentSettings,
        clock: Clock,
        publisher: Publisher,
        *,
        proc: ProcReader | None = None,
        page_opener: OpenPage = open_page,
        ring: Ring | None = None,
        gpu_command: tuple[str, ...] = (),
        nccl_logs: NcclLogs | None = None,
    ) -> None:
        self.drops: Counter[str] = Counter()
        self._settings = settings
        self._clock = clock
        self._publisher = publisher
        self._ring = ring or DiskRing(settings.state_dir / "ring", settings.ring_bytes_max, self.drops)
        self._events = EventQueue(self.drops)
        self._frames = FrameQueue(self._ring, self.drops, settings.memory_bytes_max)
        self._deliverer = Deliverer(publisher, self._events, self._frames, self.drops)
        agent = f"{settings.node}/agent"
        self._outbox = Outbox(self._events, clock, settings.node, agent, settings.registry_retain_s)
        proc = proc or ProcReader()
        self.roster = Roster(settings, clock, self._outbox, proc, self._last_words)
        self.supervisors = Supervisors(
            settings, clock, proc, self.push_event, self._outbox.graves, self.drops, self._owner_of
        )
        self.roster.is_held = self.supervisors.serves
        self._reception = Reception(
            settings, self.roster, proc, page_opener, self.drops, agent, self.supervisors
        )
        self.sampler = Sampler(settings, clock, self.roster, self._push_frame, self.drops)
        self._server = SocketServer(settings.socket, self._reception, self.drops, settings.connections_max)
        self.devices = Devices(
            settings, clock, self.roster, self.push_event, self.drops, gpu_command=gpu_command
        )
        self._roster_file = RosterFile(settings.state_dir / "roster.json")
        self._event_file = EventFile(settings.state_dir / "events.json", self._events)
        self._graves_file = GravesFile(settings.state_dir / "graves.json", self._outbox.graves)
        self._nccl_logs = nccl_logs or NcclLogs(settings.root / "proc")
        self._nccl_dumps = NcclDumps(settings.root / "proc", settings.nccl_dump_settle_s)
        self._orders = Orders(self.drops)
        self._tasks = BackgroundTasks()
        self._told: Counter[str] = Counter()
        self._repeated_ns = clock.monotonic_ns()
        self._measured_ns = 0
        self._started = False

    @property
    def delivered(self) -> Counter[str]:
        """Records that Kafka acknowledged, by topic; frames under `frames`."""
        return self._deliverer.delivered

    @property
    def waiting(self) -> tuple[int, int]:
        """(events, frames) that wait for Kafka."""
        return len(self._events), len(self._frames)

    def push_event(self, event: Event) -> None:
        """Deliver one more event with the others, in order and for as long as it takes."""
        self._events.push(event)
        self._deliverer.wake()

    def readiness(self) -> Readiness:
        """Ready while it samples; Kafka's absence is said and does not change it."""
        events, frames = self.waiting
        if self._deliverer.connected is False:
            return Readiness(self._started, f"Kafka is away: {events} events and {frames} frames wait")
        return Readiness(self._started)

    async def crashed(self) -> BaseException:
        return await self._tasks.crashed()

    async def start(self) -> None:
        """Listen and sample; SocketError where the socket cannot be opened. Never waits for Kafka."""
        self._server.start()
        self._started = True
        self._ring.open()
        backlog = self._frames.restore(self._settings.backlog_bytes_max)
        if backlog:
            log.info("backlog_found", frames=backlog)
        self._graves_file.restore()
        if waiting := self._event_file.restore():
            log.info("events_restored", count=waiting)
        restored = self._roster_file.restore(self.roster, self._settings.processes_max)
        if restored:
            log.info("processes_restored", count=restored)
        await self._publisher.start()
        self._tasks.spawn("agent-sample", self._sample())
        self._tasks.spawn("agent-deliver", self._deliverer.run())
        self.devices.start(self._tasks)
        self._tasks.spawn("agent-orders", self._look_at_orders())
        self._deliverer.wake()

    async def stop(self) -> None:
        """Deliver what can be delivered within `drain_s`; what cannot stays on disk."""
        if not self._started:
            return
        self._started = False
        await self._tasks.cancel()
        self.devices.close()
        self.supervisors.stopping = True  # they go on, and come back to the next agent
        self._server.stop()
        self.roster.release_all()
        for job in self.roster.jobs.values():
            self.roster.sync(job)  # what came since the last sample
        if not await self._deliverer.drain(self._settings.drain_s):
            log.warning("left_behind", events=len(self._events), frames=len(self._frames))
        self._save_state(last=True)
        await self._publisher.stop()
        self._ring.close()

    async def _sample(self) -> None:
        interval_ns = int(self._settings.interval_s * 1e9)
        # On full intervals, as other watchers: what is due at one instant costs one wake-up.
        next_ns = self._clock.monotonic_ns() // interval_ns * interval_ns
        while True:
            self.sampler.sample_all()
            self.supervisors.refresh()
            for job, ranks in self.supervisors.moved():
                self.roster.moved(job, ranks)
            self._outbox.bury()
            self._save_state()
            self._repeat_registry()
            self._deliverer.wake()
            self._tell_metrics()
            # A late sample does not make the following ones come in a burst.
            next_ns = max(next_ns + interval_ns, self._clock.monotonic_ns() // interval_ns * interval_ns)
            await self._clock.sleep((next_ns - self._clock.monotonic_ns()) / 1e9)

    async def _look_at_orders(self) -> None:
        """Ring and tree order; the next sample publishes what has changed. Files are read in a thread."""
        while True:
            await self._clock.sleep(self._settings.orders_s)
            if self._settings.nccl_dumps:
                await self._look_at_dumps()
            wanted = self._orders.wanted(self.roster.processes.values())
            if not wanted:
                continue
            if self._settings.nccl_logs:
                look = await asyncio.to_thread(self._nccl_logs.read, [where for _, where in wanted])
                self._orders.take([process for process, _ in wanted], look)
            for job in self.roster.jobs.values():
                self._orders.refresh(job, self.roster.of_job(job.key))

    async def _look_at_dumps(self) -> None:
        graphs = self._orders.graphs
        announced = graphs.wanted(self.roster.processes.values())
        if not announced and not graphs.is_waiting:
            return
        processes = [process for process, _ in announced]
        graphs.look(processes, self._clock.unix_s())
        dumps = await asyncio.to_thread(
            self._nccl_dumps.read, [where for _, where in announced], self._clock.unix_s()
        )
        graphs.take(processes, dumps, self._clock.unix_s())

    def _owner_of(self, job: str) -> int | None:
        """uid of the living attempts of `job` here."""
        living = {key for key in self.roster.jobs if self.roster.living(key)}
        return job_owner({key: found.uid for key, found in self.roster.jobs.items()}, living, job)

    def _push_frame(self, key: str, value: bytes) -> None:
        self._frames.push(Frame(key, value))
        self._deliverer.wake()

    def _last_words(self, process: Process) -> None:
        self.sampler.last_words(process)

    def _save_state(self, *, last: bool = False) -> None:
        self._roster_file.save(self.roster)
        if last:
            self._event_file.save()
        else:
            self._event_file.save_sometimes(self._clock.monotonic_ns())
        self._graves_file.save()  # last: a key that is in no file is lost, one in two is buried twice
        files = (self._roster_file, self._event_file, self._graves_file)
        failures = sum(file.file.failures for file in files)
        if failures:
            self.drops["state_file"] = failures

    def _repeat_registry(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._repeated_ns < self._settings.republish_s * 1e9:
            return
        self._repeated_ns = now_ns
        self.supervisors.repeat()
        for job in self.roster.jobs.values():
            if job.ended_ns is None:
                self._outbox.repeat(job)

    def _tell_metrics(self) -> None:
        count("paceline.agent.samples", self.sampler.samples - self._told["samples"])
        count("paceline.agent.bytes", self.sampler.bytes_encoded - self._told["bytes"])
        self._told["samples"], self._told["bytes"] = self.sampler.samples, self.sampler.bytes_encoded
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._measured_ns < METRICS_PERIOD_NS:
            return
        self._measured_ns = now_ns
        for reason, total in self.drops.items():
            if total > self._told[f"drop {reason}"]:
                count("paceline.agent.dropped", total - self._told[f"drop {reason}"], reason=reason)
                self._told[f"drop {reason}"] = total
        gauge("paceline.agent.processes", self.roster.living_count)
        gauge("paceline.agent.detail_jobs", self.sampler.detail.raised_jobs)
        gauge("paceline.agent.waiting", len(self._events), lane="events")
        gauge("paceline.agent.waiting", len(self._frames), lane="frames")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        gauge("paceline.agent.cpu", usage.ru_utime + usage.ru_stime)
