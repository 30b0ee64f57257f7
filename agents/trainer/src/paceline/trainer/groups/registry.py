"""All replaceable groups of one process, and their change from one generation to the next."""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.trainer.groups.backends import Builds, RebuildBackend
from paceline.trainer.groups.errors import GenerationEnded, NotSwappable, OtherGroups, RebuildFailed
from paceline.trainer.groups.generation import Fault, Generation
from paceline.trainer.groups.plan import GroupSpec, same_place
from paceline.trainer.groups.stores import generation_store
from paceline.trainer.groups.swappable import Life

log = logging.getLogger("paceline")
LEFT_GROUPS_MAX = 256  # dead inner groups kept at a time; each holds two threads and its sockets
SPECS_MAX = 4096


class Observer(Protocol):
    """The hook's part: each generation of a group has a frame of its own."""

    def regenerate(self, group: Any, spec: GroupSpec, rank: int, store: Any) -> None:
        """`rank` in the group; must not raise."""
        ...


class Recorder(Protocol):
    """Writes down what operations bring (trainer/sandbox); must not raise."""

    def begin(
        self, group: Any, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Callable[[Sequence[Any]], None] | None: ...


@dataclass
class Report:
    """What the groups of this process cost so far."""

    generation: int
    groups: int
    left_groups: int  # dead inner groups that are kept because the backend cannot abort them
    stuck_operations: int
    rebuild_ms: float = 0.0  # the newest rebuild: building, without the wait for the order
    swap_ms: float = 0.0


@dataclass
class Prepared:
    """New inner groups, built while the old ones may still be in use; see `Groups.switch`."""

    generation: int
    rank: int
    size: int
    store: Any
    inner: dict[int, Any]  # index of the group this process holds -> inner group
    places: dict[int, int]
    build_ms: float


@dataclass
class _Left:
    generation: Generation
    inner: list[Any] = field(default_factory=list)


class Groups:
    """Made by `install`; `abort` may be called from any thread, the rest from the training thread."""

    def __init__(
        self,
        c10d: Any,
        backend: RebuildBackend,
        job: str = "job",
        on_fault: Fault | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._c10d = c10d
        self.backend = backend
        self.job = job
        self.on_fault = on_fault
        self.observer: Observer | None = None
        self.recorder: Recorder | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._specs: list[GroupSpec] = []
        self._held: dict[int, weakref.ref[Any]] = {}
        self._left: list[_Left] = []
        self._rank = -1
        self.life = self._generation(0)
        self._report = Report(0, 0, 0, 0)

    def _generation(self, number: int) -> Generation:
        life = Generation(number, self._tell_fault)
        life.on_stuck = lambda: self._cut(life)
        return life

    def _cut(self, life: Generation) -> None:
        """Free what is stuck in the backend, so that nothing of a dead generation outlives the job."""
        try:
            for reference in list(self._held.values()):
                group = reference()
                if group is not None and group.paceline_life.generation is life:
                    self.backend.cut(group.paceline_life.inner)
        except Exception as error:
            log.warning("operations of generation %d stay in the backend: %r", life.number, error)

    def _tell_fault(self, generation: int, error: BaseException) -> None:
        if self.on_fault is not None:
            self.on_fault(generation, error)

    @property
    def generation(self) -> int:
        return self.life.number

    @property
    def rank(self) -> int:
        """Global rank, -1 before init_process_group."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks of the job, 0 before init_process_group."""
        return next((len(spec.ranks) for spec in self._specs if spec.world), 0)

    def spec(self, index: int) -> GroupSpec:
        return self._specs[index]

    @property
    def ended(self) -> bool:
        """Whether the present generation has ended and no newer one is there yet."""
        return self.life.ended

    def check(self) -> None:
        """GenerationEnded where the present generation has ended; for the boundaries of a step."""
        self.life.check()

    def abort(self, generation: int, reason: str) -> bool:
        """End `generation` if it is the present one; everything in flight settles before this returns."""
        life = self.life
        return life.number == generation and life.end(reason)

    def ended_by(self, error: BaseException) -> GenerationEnded | None:
        """The end of the generation behind `error`; C++ (DDP's reducer) turns it into a RuntimeError."""
        if isinstance(error, GenerationEnded):
            return error
        if self.life.ended and isinstance(error, RuntimeError):
            return self.life.error()
        return None

    # what install tells

    def note(self, name: str, description: str, ranks: tuple[int, ...], world: bool, timeout_s: float) -> int:
        """A group is about to be made by all ranks, members or not; its index."""
        with self._lock:
            if len(self._specs) >= SPECS_MAX:
                raise NotSwappable(f"more than {SPECS_MAX} process groups in one job")
            occurrence = sum(1 for spec in self._specs if spec.ranks == ranks and not spec.world)
            self._specs.append(GroupSpec(name, description, ranks, occurrence, world, timeout_s))
            return len(self._specs) - 1

    def forget(self, index: int) -> None:
        """The newest group could not be made after all."""
        with self._lock:
            if index == len(self._specs) - 1:
                self._specs.pop()

    def hold(self, index: int, group: Any, rank: int | None = None) -> None:
        """This process is a member of group `index`; `rank` is the global one, with the world."""
        with self._lock:
            self._held[index] = weakref.ref(group)
            if rank is not None:
                self._rank = rank

    def living(self) -> dict[int, Any]:
        """The groups that this process holds and has not destroyed, by index, in order of making."""
        known = self._c10d._world.pg_map
        found = {}
        for index, reference in sorted(self._held.items()):
            group = reference()
            if group is not None and group in known:
                found[index] = group
        return found

    # a new generation

    def rebuild(
        self, generation: int, attempt: int, store: Any, rank: int, size: int, timeout_s: float
    ) -> Report:
        """End what is there, build every group anew and swap it in; all members call it alike.

        `store` is a client of this thread alone. RebuildFailed: nothing was swapped, the groups stay
        ended, and a later attempt may succeed.
        """
        if generation <= self.life.number:
            raise RebuildFailed(f"generation {generation} is not newer than {self.life.number}")
        self.life.end(f"generation {generation} is being built")
        return self.switch(self.prepare(generation, attempt, store, rank, size, timeout_s))

    def prepare(
        self, generation: int, attempt: int, store: Any, rank: int, size: int, timeout_s: float
    ) -> Prepared:
        """Build the inner groups of a newer generation; training may go on meanwhile, in another thread."""
        started = self._clock()
        living = self.living()
        world = next((spec for spec in self._specs if spec.world), None)
        if world is None or not living:
            raise RebuildFailed("there is no process group to rebuild: call init_process_group first")
        if size != len(world.ranks):
            raise RebuildFailed(
                f"{size} members, and the job has {len(world.ranks)} ranks; it keeps its size"
            )
        self._reap()
        if self._count_left() >= LEFT_GROUPS_MAX:
            raise RebuildFailed(
                f"{self._count_left()} dead process groups are held by the backend; restart this process"
            )
        try:
            places = same_place(self._specs, self._rank, rank)
        except OtherGroups as error:
            raise RebuildFailed(str(error)) from error
        own = generation_store(store, self.job, generation, attempt)
        inner: dict[int, Any] = {}
        for index in living:
            spec = self._specs[places[index]]
            left_s = timeout_s - (self._clock() - started)
            if left_s <= 0:
                raise RebuildFailed(f"generation {generation} was not built within {timeout_s:g} s")
            inner[index] = self.backend.build(
                self._c10d.PrefixStore(spec.key, own),
                spec.ranks.index(rank),
                len(spec.ranks),
                generation,
                left_s,
                spec.timeout_s,
            )
        return Prepared(generation, rank, size, own, inner, places, (self._clock() - started) * 1e3)

    def is_covered(self, prepared: Prepared) -> bool:
        """Whether no group was made since: one that was not prepared would stay in what ends."""
        return self.living().keys() <= prepared.inner.keys()

    def switch(self, prepared: Prepared) -> Report:
        """Swap in what was prepared; at a step boundary, no operation in flight is carried over."""
        started = self._clock()
        left = _Left(self.life)
        self.life.end(f"generation {prepared.generation} takes over")
        life = self._generation(prepared.generation)
        left.inner = self._swap_in(life, prepared.inner, prepared.places, prepared.rank, prepared.store)
        self._left.append(left)
        self._report = Report(
            prepared.generation,
            len(prepared.inner),
            self._count_left(),
            sum(one.generation.stuck for one in self._left),
            prepared.build_ms,
            (self._clock() - started) * 1e3,
        )
        return self._report

    def rehearse(self, backend: Builds, rank: int) -> None:
        """In a standby: be `rank` until further notice, in groups that `backend` makes without peers.

        OtherGroups where it cannot be; nothing has changed then.
        """
        places = same_place(self._specs, self._rank, rank)
        inner = {}
        for index in self.living():
            spec = self._specs[places[index]]
            place, size = spec.ranks.index(rank), len(spec.ranks)
            inner[index] = backend.build(None, place, size, self.generation, 0.0, spec.timeout_s)
        left = _Left(self.life)
        left.inner = self._swap_in(self._generation(self.generation), inner, places, rank, None)
        self._left.append(left)

    def _swap_in(
        self, life: Generation, inner: Mapping[int, Any], places: Mapping[int, int], rank: int, store: Any
    ) -> list[Any]:
        """Give each living group its new inner one; the inner groups from before."""
        before: list[Any] = []
        for index, group in self.living().items():
            if index not in inner:
                continue
            spec = self._specs[places[index]]
            place = spec.ranks.index(rank)
            old: Life = group.swap(inner[index], life, place, len(spec.ranks))
            before.append(old.inner)
            self._tell_c10d(group, spec, store)
            if self.observer is not None and store is not None:
                self.observer.regenerate(group, spec, place, store if spec.world else None)
        self._held = {places.get(index, index): reference for index, reference in self._held.items()}
        self._rank = rank
        self.life = life
        return before

    def _tell_c10d(self, group: Any, spec: GroupSpec, store: Any) -> None:
        """c10d's own tables: the store of later groups, and the ranks of a group that changed its place."""
        world = self._c10d._world
        if store is not None:
            name, _ = world.pg_map[group]
            world.pg_map[group] = (name, self._c10d.PrefixStore(f"c10d/{spec.key}", store))
        world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(spec.ranks)}

    # what was left behind

    def _count_left(self) -> int:
        return sum(len(left.inner) for left in self._left)

    def _reap(self) -> None:
        """Let go of dead groups on which no operation is pending: their destructor does not block then."""
        done = [left for left in self._left if not left.generation.stuck]
        self._left = [left for left in self._left if left not in done]
        if done:
            threading.Thread(target=done.clear, name="paceline-reap", daemon=True).start()

    def report(self) -> Report:
        """The newest figures."""
        self._report.left_groups = self._count_left()
        self._report.stuck_operations = sum(left.generation.stuck for left in self._left)
        return self._report
