"""Which seam a group is observed through; chosen by what torch has, never by its version."""

import logging
from typing import Any

from paceline.trainer.guard import Guard
from paceline.trainer.native import NativeHooks, has_native_hooks
from paceline.trainer.operations import Describer
from paceline.trainer.probe import ProbePage
from paceline.trainer.settings import HookChoice
from paceline.trainer.watch import Followed, Watch
from paceline.trainer.wrapper import WATCH, make_group_class, make_seam, make_work_class

log = logging.getLogger("paceline")
STREAM_BACKENDS = ("nccl", "xccl", "ucc", "mpi")  # completion is on a device stream or in another world


class Adapter:
    """Observes groups. `seam` stands for `ProcessGroup` while a wrapped group is made."""

    def __init__(self, torch: Any, c10d: Any, native: bool, wrapper: bool) -> None:
        self.base = c10d.ProcessGroup
        describer = Describer.of_torch(torch, c10d)
        self._work_class = make_work_class(c10d.Work)
        self._native = NativeHooks(describer) if native else None
        self._group_class = (
            make_group_class(self.base, describer.table(), torch.distributed.HashStore()) if wrapper else None
        )
        self.seam = make_seam(self.base, self._make_group)

    def _make_group(self, *arguments: Any, **keywords: Any) -> Any:
        if self._group_class is not None:
            try:
                return self._group_class(*arguments, **keywords)
            except Exception as error:
                log.warning("paceline could not wrap a process group (%r); it stays unobserved", error)
        return self.base(*arguments, **keywords)

    def wraps(self, backend: str) -> bool:
        """Whether a group of this backend string (`gloo`, `cpu:gloo,cuda:nccl`) is made by the seam."""
        return self._group_class is not None and any(name not in STREAM_BACKENDS for name in _names(backend))

    def can_observe(self, group: Any) -> bool:
        """Whether `observe` can do anything with this object."""
        return isinstance(group, self.base) and (self._native is not None or hasattr(group, WATCH))

    def observe(
        self, group: Any, page: ProbePage, slot: int, guard: Guard, followed: Followed, backend: str
    ) -> None:
        """From now on every operation of `group` is told to `page`."""
        names = _names(backend)
        streams = all(name in STREAM_BACKENDS for name in names)
        mixed = any(name in STREAM_BACKENDS or name == "undefined" for name in names) and not streams
        watch = Watch(page, slot, guard, followed, self._work_class, cpu_only=mixed, streams=streams)
        if hasattr(group, WATCH):
            group.paceline_watch = watch
        elif self._native is not None:
            self._native.observe(group, watch)


def _names(backend: str) -> list[str]:
    return [part.partition(":")[2] or part for part in backend.split(",")]


def choose_adapter(choice: HookChoice, torch: Any, c10d: Any) -> Adapter | None:
    """The adapter for a choice, from what this torch has; None where nothing is to be observed.

    `auto` takes the wrapper where work ends on the host, because torch's native hooks tell neither
    the reduce op nor the end of a send, and the native hooks, where torch has them, for all else.
    """
    if choice == "off":
        return None
    native = has_native_hooks(c10d.ProcessGroup)
    if choice == "native" and not native:
        log.warning("PACELINE_HOOK=native: this torch has no native hooks; using the wrapper")
        choice = "auto"
    return Adapter(torch, c10d, native=native and choice != "wrapper", wrapper=choice != "native")
