"""A process group whose inside can be replaced while DDP, ZeRO, FSDP2 and functional collectives hold it.

It is a Python subclass of torch's ProcessGroup in the holding form (see trainer/wrapper.py): C++ finds
its methods through the trampoline. Every operation runs on scratch tensors of the inner group of the
present generation and never blocks in it; an operation of an ended generation is a Work that has
failed, because DDP's reducer does not survive an exception out of the middle of a backward pass.
"""

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.trainer.groups.errors import CallRefused, GenerationEnded
from paceline.trainer.groups.generation import Generation
from paceline.trainer.groups.pending import Pending, WaitThreads
from paceline.trainer.groups.scratch import OPERATIONS, POINT_TO_POINT, copy_back, with_scratch
from paceline.trainer.groups.work import work_class
from paceline.trainer.operations import Describe
from paceline.trainer.watch import UNSEEN
from paceline.trainer.wrapper import WATCH

SWAPPABLE = "paceline_life"

FORWARDED = (
    "monitored_barrier", "get_group_store", "set_timeout", "_start_coalescing", "_end_coalescing",
    "_get_sequence_number_for_group", "split_group", "merge_remote_group",
)  # fmt: skip


class Life(NamedTuple):
    """What a group is during one generation; replaced as a whole, so that readers need no lock."""

    generation: Generation
    inner: Any  # a plain ProcessGroup, or a ReplayGroup
    rank: int
    size: int
    waiters: WaitThreads


def is_swappable(group: object) -> bool:
    return hasattr(group, SWAPPABLE)


@functools.cache
def swappable_class(torch: Any, c10d: Any, describers: Any = None) -> Any:
    """The class for this torch; `describers` is a `Describer`, for a group that the hook observes.

    Made with `(rank, size)`; it has no inner group until `swap`.
    """
    base = c10d.ProcessGroup
    works = work_class(c10d.Work, torch.futures.Future)
    table = describers.table() if describers is not None else {}

    def __init__(self: Any, rank: int, size: int) -> None:
        base.__init__(self, rank, size)
        self.paceline_life = Life(Generation(-1), None, rank, size, WaitThreads())
        self.paceline_swap_lock = threading.Lock()
        self.paceline_backends = []
        self.paceline_registry = None

    members: dict[str, Any] = {
        "__doc__": "A process group that Paceline can replace while it is in use.",
        WATCH: None,
        "__init__": __init__,
        "swap": _swap,
        "abort": _abort,
        "shutdown": _shutdown,
        "rank": _rank,
        "size": _size,
        "getRank": _rank,  # the names that C++ looks for
        "getSize": _size,
        "generation": property(lambda self: self.paceline_life.generation.number),
        "_register_backend": _registered(base),
        "_get_backend": _get_backend,
        "_set_default_backend": lambda self, kind: base._set_default_backend(self, base.BackendType.CUSTOM),
        "_set_sequence_number_for_group": lambda self: None,
        "_get_backend_name": lambda self: "gloo",
        "name": lambda self: "gloo",
    }
    for name in OPERATIONS:
        if hasattr(base, name):
            members[name] = _operation(torch, name, works, table.get(name))
    for name in FORWARDED:
        if hasattr(base, name):
            members[name] = _forwarded(name)
    return type("SwappableGroup", (base,), members)


def _rank(self: Any) -> int:
    return int(self.paceline_life.rank)


def _size(self: Any) -> int:
    return int(self.paceline_life.size)


def _swap(
    self: Any, inner: Any, generation: Generation, rank: int | None = None, size: int | None = None
) -> Life:
    """From now on `inner` carries the operations; gives back the life before, which has ended.

    What was in flight settles with GenerationEnded before this returns.
    """
    with self.paceline_swap_lock:
        before: Life = self.paceline_life
        before.generation.end(f"replaced by generation {generation.number}")
        before.waiters.close()
        self.paceline_life = Life(
            generation,
            inner,
            before.rank if rank is None else rank,
            before.size if size is None else size,
            WaitThreads(),
        )
        return before


def _abort(self: Any, generation: int | None = None, reason: str = "aborted") -> bool:
    """End the present generation, if it is `generation` (None: whichever it is); from any thread."""
    life: Life = self.paceline_life
    if generation is not None and life.generation.number != generation:
        return False
    return life.generation.end(reason)


def _shutdown(self: Any) -> None:
    """destroy_process_group: nothing is waited for."""
    life: Life = self.paceline_life
    life.waiters.close()


def _registered(base: Any) -> Callable[..., None]:
    """c10d gives the backend of the first generation; the inner group is made of it.

    C++ keeps the name of a group in its backend and sends there what this class does not override: it
    gets one that refuses every operation, so that nothing can reach a dead generation unseen.
    """

    def method(self: Any, device: Any, backend_type: Any, backend: Any) -> None:
        self.paceline_backends.append(backend)
        base._register_backend(self, device, custom, refusing(self.rank(), self.size()))

    custom = base.BackendType.CUSTOM  # not GLOO: DDP's logger would read gloo's options out of it
    return method


def refusing(rank: int, size: int) -> Any:
    """A backend that raises at every operation and has no socket."""
    kind = importlib.import_module("torch._C._distributed_c10d").FakeProcessGroup
    options = kind.Options()
    options.error_on_collective = True
    return kind._create_internal(rank, size, options)


def _get_backend(self: Any, device: Any) -> Any:
    inner = self.paceline_life.inner
    return inner._get_backend(device)


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        life: Life = self.paceline_life
        life.generation.check()
        return getattr(life.inner, name)(*arguments, **keywords)

    return method


def _operation(torch: Any, name: str, works: Any, describe: Describe | None) -> Callable[..., Any]:
    point_to_point = name in POINT_TO_POINT

    def issue(self: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        life: Life = self.paceline_life
        if life.generation.ended:
            return works(_failed(life))
        registry = self.paceline_registry
        recorder = registry.recorder if registry is not None else None
        keep = recorder.begin(self, name, arguments, keywords) if recorder is not None else None
        given, pairs = with_scratch(torch, name, arguments, keywords)
        pending = Pending(life.generation, pairs, copy_back, life.waiters, keep)
        if not life.generation.admit(pending):
            return works(_failed(life))
        try:
            inner = getattr(life.inner, name)(*given, **keywords)
        except GenerationEnded:
            pending.settle(life.generation.error())
            return works(pending)
        except CallRefused as error:
            pending.settle(error)
            raise
        except RuntimeError as error:
            # A closed pair refuses a send at once; whatever else is refused at once is a wrong call.
            if not point_to_point or "nvalid argument" in str(error):
                pending.settle(error)
                raise
            life.generation.fail(error)
            return works(pending)
        except BaseException as error:
            pending.settle(error)
            raise
        pending.start(inner)
        return works(pending)

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        watch = self.paceline_watch
        if watch is None or describe is None or watch.guard.off:
            return issue(self, arguments, keywords)
        ticket = watch.enter(describe, arguments, keywords)
        if ticket == UNSEEN:
            return issue(self, arguments, keywords)
        try:
            work = issue(self, arguments, keywords)
        except BaseException:
            watch.fail(ticket)
            raise
        return watch.issued(ticket, point_to_point, work)

    return method


def _failed(life: Life) -> Pending:
    """An operation that was never handed on, since its generation has ended."""
    pending = Pending(life.generation, (), copy_back, life.waiters)
    pending.settle(None)
    return pending
