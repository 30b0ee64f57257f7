"""How the inner group of a new generation is made, behind one interface."""

import importlib
import os
from datetime import timedelta
from typing import Any, Protocol

from paceline.trainer.groups.cutting import Address, Listeners, announce, cut, device_with_address, hear
from paceline.trainer.groups.errors import RebuildFailed, first_line

LAZY_FROM_RANKS = 16  # a full mesh of gloo takes 30 ms at 16 ranks and 121 ms at 32, lazy pairs 3 and 10 ms

LISTENERS_MAX = 4096


class Builds(Protocol):
    """Builds inner groups; every member of a group calls it with the same store and generation."""

    def build(
        self, store: Any, rank: int, size: int, generation: int, timeout_s: float, operation_timeout_s: float
    ) -> Any:
        """A plain ProcessGroup ready for use; RebuildFailed within about `timeout_s`."""
        ...


class RebuildBackend(Builds, Protocol):
    """Builds them for real, and frees what is stuck in them."""

    def cut(self, inner: Any) -> int:
        """Make the operations in flight of a dead group fail; how many connections it took."""
        ...


class GlooRebuild:
    """A new gloo group for each generation; the old one is left behind."""

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        # Kept: inside c10d other things bear these names while it makes a group.
        self._group_class, self._gloo_class = c10d.ProcessGroup, c10d.ProcessGroupGloo
        self._listeners: dict[int, Listeners] = {}  # by id of the group; a stale one matches no socket

    def build(
        self, store: Any, rank: int, size: int, generation: int, timeout_s: float, operation_timeout_s: float
    ) -> Any:
        try:
            gloo, own = self.gloo(store, rank, size, timeout_s)
            listeners = hear(store, rank, size, own)
        except RuntimeError as error:
            raise RebuildFailed(
                f"generation {generation}: rank {rank} of {size} did not meet its peers within "
                f"{timeout_s:g} s: {first_line(error) or repr(error)}"
            ) from error
        gloo._set_default_timeout(timedelta(seconds=operation_timeout_s))
        group = self.group(store, rank, size, gloo)
        if listeners is not None:
            self._listeners[id(group)] = listeners
            while len(self._listeners) > LISTENERS_MAX:
                del self._listeners[next(iter(self._listeners))]
        return group

    def cut(self, inner: Any) -> int:
        listeners = self._listeners.pop(id(inner), None)
        return cut(listeners) if listeners is not None else 0

    def gloo(self, store: Any, rank: int, size: int, timeout_s: float) -> tuple[Any, Address | None]:
        """The bare backend, and where it listens."""
        classes = self._gloo_class
        options = classes._Options()
        lazy = size >= LAZY_FROM_RANKS
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]

        def make() -> Any:
            if interface:
                return classes.create_device(interface=interface, lazy_init=lazy)
            return classes.create_default_device(lazy_init=lazy)

        device, address = device_with_address(make)
        announce(store, rank, address)
        options._devices = [device]
        options._threads = 2
        options._timeout = timedelta(seconds=timeout_s)
        return classes(store, rank, size, options), address

    def group(self, store: Any, rank: int, size: int, gloo: Any) -> Any:
        """A plain ProcessGroup around it, which has the methods that a backend lacks."""
        base = self._group_class
        group = base(store, rank, size)
        kind = base.BackendType.GLOO
        group._set_default_backend(kind)
        for device in ("cpu", "cuda"):
            group._register_backend(self._torch.device(device), kind, gloo)
        return group
