"""The replica server of a process: it outlives the generations and hands each peer to its own."""

import logging
import socket
import threading
import time
from collections.abc import Callable

from paceline.trainer.protection import wire
from paceline.trainer.protection.errors import WireError
from paceline.trainer.protection.replica import HANDSHAKE_S, Generation
from paceline.trainer.protection.slots import Slots
from paceline.trainer.protection.wire import Channel

log = logging.getLogger("paceline.protection")

CONNECTIONS_MAX = 64
ACCEPT_PAUSE_S = 0.1


class Server:
    """Listens for the whole life of the process, and hands each peer to its generation: the current one or
    the one that is being prepared.

    `host` is where others reach this machine.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._listener = wire.listen(host, CONNECTIONS_MAX)
        self._listener.settimeout(None)  # whatever default the script has set for its own sockets
        self._closed = threading.Event()
        self.endpoint = f"{host}:{self._listener.getsockname()[1]}"
        self.generation: Generation | None = None
        self.coming: Generation | None = None  # has the same key
        self.refused_connections = 0
        self.failed_accepts = 0
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        threading.Thread(target=self._accept, name="paceline-replicas", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:  # out of descriptors for a moment, or a peer that left at once
                if self._closed.wait(ACCEPT_PAUSE_S):
                    return
                self.failed_accepts += 1
                if self.failed_accepts == 1:
                    log.warning("the replica server cannot take a connection (%s) and tries again", error)
                continue
            if not self._room.acquire(blocking=False):
                self.refused_connections += 1
                sock.close()
                continue
            threading.Thread(
                target=self._serve, args=(sock,), name="paceline-replica-of", daemon=True
            ).start()

    def _serve(self, sock: socket.socket) -> None:
        known = [one for one in (self.generation, self.coming) if one is not None]
        try:
            sock.settimeout(HANDSHAKE_S)
            if known:
                channel = Channel(sock, known[0].key, is_client=False, handshake_s=HANDSHAKE_S)
                hello = channel.receive()
                number = wire.number(hello, "generation")
                next((one for one in known if one.number == number), known[0]).serve(channel, hello)
        except ConnectionError:
            pass
        except (OSError, WireError) as error:
            self.refused_connections += 1
            log.info("a connection to the replica server ended: %s", error)
        finally:
            sock.close()
            self._room.release()


def settle(slots: Slots, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Wait until no copy is half received, since a dead peer's last bytes may still be in the kernel."""
    deadline = clock() + timeout_s
    while clock() < deadline and any(slot.record and not slot.record.sealed for slot in slots.all):
        time.sleep(0.001)
