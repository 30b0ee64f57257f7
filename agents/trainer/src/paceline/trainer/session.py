"""One training process as Paceline sees it: its page, its link to the agent, its communicators."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.contracts.agent_socket import CommunicatorClosed, CommunicatorOpened, Goodbye, Hello
from paceline.contracts.codes import FrameFlag, HostWait, Phase, Source
from paceline.contracts.ids import communicator_id, format_communicator, format_ranks
from paceline.trainer import identity, surroundings
from paceline.trainer.coordinates import Membership, group_kind, mesh_coordinates
from paceline.trainer.guard import Guard
from paceline.trainer.heartbeat import Heartbeat
from paceline.trainer.nonce import KEY as NONCE_KEY
from paceline.trainer.nonce import NonceReader, follow_nonce
from paceline.trainer.probe import Link, NoLink, ProbeFactory, ProbePage
from paceline.trainer.settings import HEARTBEATS_HZ, TrainerSettings
from paceline.trainer.watch import Followed

log = logging.getLogger("paceline")
GOODBYE_TIMEOUT_S = 0.5
EXIT_WAIT_S_MAX = 1900.0  # above torch's own timeout of 30 minutes, which ends every operation of gloo
EXIT_POLL_S = 0.02
MEMBERSHIPS_MAX = 256  # groups a coordinate is looked for in; a page holds 64 communicators at a time
UNNAMED = ("", "undefined", "default_pg")


@dataclass(frozen=True)
class Group:
    """A communicator of this process: `ranks` are global, in communicator order."""

    name: str
    description: str
    ranks: tuple[int, ...]
    rank: int
    backend: str


@dataclass(frozen=True)
class OpenGroup:
    """Its number, its place in the page (-1: the page is full, it is only registered) and its instance."""

    communicator: int
    slot: int
    instance: int


class Session:
    """Opened when the process makes its first group; every public method is safe to call at any time.

    Nothing waits for the agent. `declared` holds what `attach` was told.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        environment: Mapping[str, str],
        probe: ProbeFactory,
        around: identity.Surroundings,
        torch_version: str = "",
    ) -> None:
        self.settings = settings
        self.guard = Guard(self._tell_off)
        self.followed = Followed()
        self._environment = environment
        self._lock = threading.RLock()
        self._instances: dict[int, int] = {}
        self._slots: set[int] = set()
        self._memberships: list[Membership] = []
        ranks = identity.read_ranks(environment)
        job = identity.job_identity(environment, around, settings.job_id)
        self._attempt = identity.provisional_attempt(environment, settings.attempt)
        self.page: ProbePage = probe.page(
            job.value,
            self._attempt.value,
            ranks.rank,
            ranks.world_size,
            ranks.local_rank,
            f"torch {torch_version}",
        )
        dumps = surroundings.nccl_dumps(environment)
        self.hello = Hello(
            job=job.value,
            job_source=job.source,
            attempt=self._attempt.value,
            attempt_source=self._attempt.source,
            rank=ranks.rank,
            world_size=ranks.world_size,
            local_rank=ranks.local_rank,
            pid=surroundings.pid(),
            pid_start=surroundings.pid_start(),
            name=settings.name,
            cluster=settings.cluster,
            tenant=settings.tenant,
            user=surroundings.user(environment),
            gpu=identity.read_gpu(environment, ranks.local_rank, around.gpus),
            versions=surroundings.versions(torch_version),
            coordinates=dict(settings.coordinates),
            coordinate_source="declared" if settings.coordinates else "none",
            nccl_log=surroundings.nccl_log(environment),
            nccl_graph=dumps[0],
            nccl_topology=dumps[1],
            nccl_dump_rank=dumps[2],
        )
        self._link: Link = self._open_link(probe)
        self._nonce: NonceReader | None = None
        self._agreed = ""  # the nonce of this attempt, once known
        self._heartbeat = Heartbeat(self._beat, HEARTBEATS_HZ)
        self.page.set_phase(int(Phase.INIT), "init")
        self._heartbeat.start()

    def _open_link(self, probe: ProbeFactory) -> Link:
        try:
            return probe.link(self.settings.socket_path, self.page, self.hello)
        except (OSError, RuntimeError, ImportError) as error:
            log.warning("paceline has no agent (%s); the job runs unobserved", error)
            return NoLink()

    def _tell_off(self) -> None:
        """The hook is off from now on: no number of a frame may be taken for all that happened."""
        self.page.count_error()
        for slot in sorted(self._slots):
            self.page.add_flags(slot, int(FrameFlag.DROPPED))

    def _beat(self) -> None:
        self.page.beat()

    def join_world(self, rank: int, world_size: int, store: Any) -> None:
        """The default group is being made: the ranks are certain now, and there is a store."""
        with self._lock:
            local_rank = self.hello.local_rank
            self._update(replace(self.hello, rank=rank, world_size=world_size, local_rank=local_rank))
        if self._attempt.source != "declared" and self._nonce is None and store is not None:
            self._nonce = NonceReader(store, self._settle_attempt)
            self._nonce.start()

    def join_generation(self, rank: int, world_size: int, store: Any) -> None:
        """The default group has been rebuilt on `store`; a process that was no member yet is one now.

        Members hand the attempt on, a newcomer takes theirs: it is still the same attempt of the job.
        """
        with self._lock:
            self._update(replace(self.hello, rank=rank, world_size=world_size))
            agreed, declared = self._agreed, self._attempt.source == "declared"
        if declared:
            return
        if agreed:
            store.set(NONCE_KEY, agreed)
        elif self._nonce is None:
            self._nonce = NonceReader(store, self._settle_attempt, ask=follow_nonce)
            self._nonce.start()

    def await_attempt(self, timeout_s: float) -> bool:
        """True where the attempt is final; for tests and tools, training never calls it."""
        return self._nonce is None or self._nonce.join(timeout_s)

    def _settle_attempt(self, nonce: str) -> None:
        settled = identity.settled_attempt(self._environment, self._attempt, nonce)
        with self._lock:
            self._agreed = nonce
            self._attempt = settled
            self._update(replace(self.hello, attempt=settled.value, attempt_source=settled.source))

    def _update(self, hello: Hello) -> None:
        if hello == self.hello or self.guard.off:
            return
        self.hello = hello
        self.page.set_identity(hello.job, hello.attempt, hello.rank, hello.world_size, hello.local_rank)
        self._link.hello(hello)

    def open_group(self, group: Group) -> OpenGroup:
        """Give the group a frame in the page and register it; slot -1 where the page has none left."""
        with self._lock:
            first = communicator_id(group.name, group.ranks)
            instance = self._instances.get(first, 0)
            self._instances[first] = instance + 1
            communicator = communicator_id(group.name, group.ranks, instance)
            slot = self.page.open_communicator(
                communicator, instance, group.rank, len(group.ranks), self.hello.rank, int(Source.TORCH_HOOK)
            )
            if slot >= 0:
                self._slots.add(slot)
            label = group.name if group.description in UNNAMED else group.description
            kind, _ = group_kind(group.description, len(group.ranks), self.hello.world_size)
            self._link.send(
                CommunicatorOpened(
                    communicator=format_communicator(communicator),
                    name="world" if group.description == "default_pg" else label,
                    ranks=format_ranks(group.ranks),
                    instance=instance,
                    backend=group.backend,
                    slot=slot,
                    kind=kind,
                )
            )
            self._remember(group)
            return OpenGroup(communicator, slot, instance)

    def _remember(self, group: Group) -> None:
        if len(self._memberships) < MEMBERSHIPS_MAX:
            self._memberships.append(Membership(group.description, group.ranks, group.rank))
        found = mesh_coordinates(self.settings.coordinates, self._memberships, self.hello.world_size)
        self._update(
            replace(self.hello, coordinates=dict(found.values), coordinate_source=found.source.value)
        )

    def close_group(self, opened: OpenGroup) -> None:
        """The group was destroyed by its owner."""
        if opened.slot >= 0:
            self._slots.discard(opened.slot)
            self.page.close_communicator(opened.slot)
        self._link.send(CommunicatorClosed(format_communicator(opened.communicator)))

    def declare(self, name: str | None, coordinates: Mapping[str, int] | None) -> None:
        """What the script says about itself after the session has begun."""
        with self._lock:
            if coordinates:
                self.settings = replace(self.settings, coordinates=dict(coordinates))
                hello = replace(self.hello, coordinates=dict(coordinates), coordinate_source="declared")
            else:
                hello = self.hello
            self._update(replace(hello, name=name or hello.name))

    def set_host_wait(self, kind: HostWait, name: str = "", rank: int = -1) -> None:
        self.page.set_host_wait(int(kind), name, rank)

    def await_followed(self, timeout_s: float, pause: Callable[[float], None]) -> bool:
        """Wait until torch has reported every operation that is still in flight (see `Followed`)."""
        waited_s = 0.0
        while len(self.followed) and waited_s < timeout_s:
            pause(EXIT_POLL_S)
            waited_s += EXIT_POLL_S
        if waited_s:
            pause(EXIT_POLL_S)  # the last report is still on its way out of Python
        return not len(self.followed)

    def finish(self, reason: str, message: str = "") -> None:
        """Orderly end; waits at most STOP_TIMEOUT_S and GOODBYE_TIMEOUT_S."""
        self._heartbeat.stop()
        if reason == "finished":
            self.page.finish()
        self._link.close(Goodbye(reason, message), GOODBYE_TIMEOUT_S)

    def abandon(self) -> None:
        """In a forked child: the page belongs to the parent."""
        self.guard.off = True
