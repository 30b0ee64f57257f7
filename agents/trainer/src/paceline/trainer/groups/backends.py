"""How the inner group of a new generation is made, behind one interface."""

import importlib
import os
from datetime import timedelta
from typing import Any, Protocol

from paceline.trainer.groups.errors import RebuildFailed

LAZY_FROM_RANKS = 16  # a full mesh of gloo takes 30 ms at 16 ranks and 121 ms at 32, lazy pairs 3 and 10 ms


class RebuildBackend(Protocol):
    """Builds inner groups; every member of a group calls it with the same store and generation."""

    name: str

    def build(
        self, store: Any, rank: int, size: int, generation: int, timeout_s: float, operation_timeout_s: float
    ) -> Any:
        """A plain ProcessGroup ready for use; RebuildFailed within about `timeout_s`."""
        ...


class GlooRebuild:
    """A new gloo group for each generation; the old one is left behind."""

    name = "gloo"

    def __init__(self, lazy: bool | None = None) -> None:
        self._lazy = lazy
        self._torch = importlib.import_module("torch")
        c10d = importlib.import_module("torch.distributed.distributed_c10d")
        # Kept: inside c10d other things bear these names while it makes a group.
        self._group_class, self._gloo_class = c10d.ProcessGroup, c10d.ProcessGroupGloo

    def build(
        self, store: Any, rank: int, size: int, generation: int, timeout_s: float, operation_timeout_s: float
    ) -> Any:
        try:
            gloo = self.gloo(store, rank, size, timeout_s)
        except RuntimeError as error:
            message = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise RebuildFailed(
                f"generation {generation}: rank {rank} of {size} did not meet its peers within "
                f"{timeout_s:g} s: {message}"
            ) from error
        gloo._set_default_timeout(timedelta(seconds=operation_timeout_s))
        return self.group(store, rank, size, gloo)

    def gloo(self, store: Any, rank: int, size: int, timeout_s: float) -> Any:
        """The bare backend."""
        classes = self._gloo_class
        options = classes._Options()
        lazy = self._lazy if self._lazy is not None else size >= LAZY_FROM_RANKS
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
        options._devices = [
            classes.create_device(interface=interface, lazy_init=lazy)
            if interface
            else classes.create_default_device(lazy_init=lazy)
        ]
        options._threads = 2
        options._timeout = timedelta(seconds=timeout_s)
        return classes(store, rank, size, options)

    def group(self, store: Any, rank: int, size: int, gloo: Any) -> Any:
        """A plain ProcessGroup around it, which has the methods that a backend lacks."""
        base = self._group_class
        group = base(store, rank, size)
        kind = base.BackendType.GLOO
        group._set_default_backend(kind)
        for device in ("cpu", "cuda"):
            group._register_backend(self._torch.device(device), kind, gloo)
        return group
