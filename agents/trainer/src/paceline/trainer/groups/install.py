"""Lets c10d make replaceable groups: its helper is surrounded, two names are replaced while it runs.

Only gloo alone is replaceable; a group of any other backend is made as ever and said to be refused.
"""

import functools
import importlib
import inspect
import logging
import threading
from datetime import timedelta
from typing import Any

from paceline.trainer.groups.backends import Builds, GlooRebuild, RebuildBackend
from paceline.trainer.groups.errors import NotSwappable
from paceline.trainer.groups.generation import Fault
from paceline.trainer.groups.plan import GroupSpec
from paceline.trainer.groups.registry import Groups
from paceline.trainer.groups.swappable import is_swappable, swappable_class
from paceline.trainer.operations import Describer
from paceline.trainer.session import Group

log = logging.getLogger("paceline")
C10D = "torch.distributed.distributed_c10d"
HELPER = "_new_process_group_helper"
GLOO = ("gloo", "cpu:gloo")
NAMES = ("ProcessGroup", "ProcessGroupGloo")


class _Stand(type):
    """Stands for a class inside c10d: calling it makes what `make` says, everything else is the class."""

    base: Any
    make: Any

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls.make(*arguments, **keywords)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.base, FirstBackend))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.base)

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "base"), name)


class FirstBackend:
    """What c10d holds as the backend of the first generation while it makes a group."""

    supports_splitting = False

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.options = _Options()

    def _set_sequence_number_for_group(self) -> None:
        """gloo counts from 0 by itself."""


class _Options:
    global_ranks_in_group: Any = None
    group_name: Any = None


class HookObserver:
    """Gives each generation of a group a frame of its own, where the observing hook is in."""

    def regenerate(self, group: Any, spec: GroupSpec, rank: int, store: Any) -> None:
        hook = _hook()
        if hook is not None:
            hook.outside = False
            described = Group(spec.name, spec.description, spec.ranks, rank, "gloo")
            hook.regenerate(group, described, store)


def _hook() -> Any:
    from paceline.trainer.process import current

    process = current()
    return process.hook if process is not None else None


class Maker:
    """Surrounds the helper of one c10d."""

    def __init__(self, torch: Any, c10d: Any, groups: Groups) -> None:
        self._torch = torch
        self._c10d = c10d
        self.groups = groups
        self._original = getattr(c10d, HELPER)
        self._signature = inspect.signature(self._original)
        self._lock = threading.RLock()  # c10d makes groups one after the other; so do we
        self._class = swappable_class(torch, c10d, Describer.of_torch(torch, c10d))
        self.sandbox: Builds | None = None
        groups.observer = HookObserver()

    def stay_outside(self, backend: Builds) -> None:
        """This process is a standby: until it is promoted its groups are those of `backend`, unobserved."""
        self.sandbox = backend
        self._tell_hook()

    def _tell_hook(self) -> None:
        hook = _hook()
        if hook is not None:
            hook.outside = self.sandbox is not None and self.groups.generation == 0

    def install(self) -> None:
        @functools.wraps(self._original)  # the hook may come later, and reads the signature
        def replacement(*arguments: Any, **keywords: Any) -> Any:
            return self._around(*arguments, **keywords)

        setattr(self._c10d, HELPER, replacement)

    def _around(self, *arguments: Any, **keywords: Any) -> Any:
        bound = self._signature.bind(*arguments, **keywords).arguments
        backend = str(bound["backend"]).lower()
        self._tell_hook()
        size = int(bound["group_size"])
        ranks = tuple(bound["global_ranks_in_group"])
        world = not ranks
        if backend not in GLOO or self._c10d.get_debug_level() == self._c10d.DebugLevel.DETAIL:
            if world:
                raise NotSwappable(
                    f"a job with backend {backend!r} cannot be repaired while it runs: only gloo without "
                    "TORCH_DISTRIBUTED_DEBUG=DETAIL can; run it without repair"
                )
            log.warning("paceline: group %s of backend %s stays as it is at a repair", ranks, backend)
            return self._original(*arguments, **keywords)
        index = self.groups.note(
            str(bound["group_name"]),
            str(bound.get("group_desc") or ""),
            ranks or tuple(range(size)),
            world,
            bound["timeout"].total_seconds(),
        )
        if bound["group_rank"] is None:
            return self._original(*arguments, **keywords)
        try:
            result = self._make(arguments, keywords)
        except BaseException:
            self.groups.forget(index)
            raise
        group = result[0] if isinstance(result, tuple) else result
        self._complete(group, int(bound["group_rank"]), size)
        self.groups.hold(index, group, int(bound["group_rank"]) if world else None)
        return result

    def _make(self, arguments: Any, keywords: Any) -> Any:
        c10d = self._c10d
        with self._lock:
            before = {name: getattr(c10d, name) for name in NAMES}
            c10d.ProcessGroup = _Stand(
                "ProcessGroup", (), {"base": before["ProcessGroup"], "make": self.group}
            )
            c10d.ProcessGroupGloo = _Stand(
                "ProcessGroupGloo", (), {"base": before["ProcessGroupGloo"], "make": self._first}
            )
            try:
                return self._original(*arguments, **keywords)
            finally:
                for name, value in before.items():
                    setattr(c10d, name, value)

    def group(self, store: Any, rank: int, size: int) -> Any:
        """Instead of a plain ProcessGroup."""
        return self._class(rank, size)

    def _first(self, store: Any, rank: int, size: int, timeout: timedelta) -> FirstBackend:
        """Instead of a plain gloo backend: the inner group of the first generation."""
        backend = self.sandbox or self.groups.backend
        number = self.groups.generation
        seconds = timeout.total_seconds()
        return FirstBackend(backend.build(store, rank, size, number, seconds, seconds))

    def _complete(self, group: Any, rank: int, size: int) -> None:
        if not is_swappable(group):
            raise NotSwappable(f"torch made a {type(group).__name__} where Paceline's group was expected")
        first = next(backend for backend in group.paceline_backends if isinstance(backend, FirstBackend))
        group.paceline_registry = self.groups
        group.swap(first.inner, self.groups.life, rank, size)
        group.paceline_backends.clear()


_maker: Maker | None = None


def install(job: str = "job", backend: RebuildBackend | None = None, on_fault: Fault | None = None) -> Groups:
    """Make every later gloo group of this process replaceable; call it before init_process_group.

    `job` is part of the keys in stores. `on_fault(generation, error)` is called once where this rank's
    transport fails first, from any thread. A second call gives the same object back.
    """
    global _maker
    if _maker is None:
        torch = importlib.import_module("torch")
        c10d = importlib.import_module(C10D)
        if c10d.is_initialized():
            raise NotSwappable("init_process_group has been called before; install the groups first")
        if not hasattr(c10d, HELPER):
            raise NotSwappable(f"torch {torch.__version__} has no {HELPER}: no group can be replaced")
        _maker = Maker(torch, c10d, Groups(c10d, backend or GlooRebuild(), job, on_fault))
        _maker.install()
    return _maker.groups


def maker() -> Maker | None:
    """The installed maker, None where nothing is installed."""
    return _maker
