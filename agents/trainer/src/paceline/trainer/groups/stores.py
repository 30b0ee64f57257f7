"""Stores outside any single rank: every process serves one, so the death of a rank loses none."""

import importlib
import socket
from datetime import timedelta
from typing import Any

from paceline.trainer.groups.errors import RebuildFailed

# torch asks for the name of its peer's address, and a resolver that does not answer takes 5 s for that.
CONNECT_TIMEOUT_S = 20.0
ADDRESS_CHARACTERS_MAX = 300


def host_store(host: str, timeout_s: float = 60.0) -> tuple[Any, str]:
    """A TCPStore served by this process on a port of its own, and its endpoint `host:port`.

    `host` is the address at which the other ranks reach this machine.
    """
    c10d = importlib.import_module("torch.distributed")
    store = c10d.TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    return store, f"{host}:{store.port}"


def join_store(endpoint: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Any:
    """A client of its own at `endpoint`; RebuildFailed where nobody serves there.

    A first plain connection finds a dead host at once: torch's own client tries for twice its timeout.
    """
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or len(endpoint) > ADDRESS_CHARACTERS_MAX:
        raise RebuildFailed(f"store {endpoint!r}: expected host:port")
    c10d = importlib.import_module("torch.distributed")
    try:
        socket.create_connection((host, int(port)), timeout_s).close()
        return c10d.TCPStore(
            host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
        )
    except (OSError, RuntimeError) as error:
        raise RebuildFailed(f"the store at {endpoint} does not answer: {error}") from error


def generation_store(store: Any, job: str, generation: int, attempt: int) -> Any:
    """A part of `store` that no other attempt has used: a used one holds addresses of the dead."""
    c10d = importlib.import_module("torch.distributed")
    return c10d.PrefixStore(f"paceline/{job}/gen/{generation}/{attempt}", store)
