"""Ports on loopback that stay ours.

They are drawn below the range the kernel gives to outgoing connections (32768 to 60999 on Linux): a
client that tries again and again while a server restarts could otherwise be given the server's own
port, and the server would not come back.
"""

import random
import socket

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
TRIES_MAX = 200


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def draw_ports(count: int) -> list[int]:
    """`count` different free ports; OSError where too few are found."""
    found = [port for port in random.sample(PORTS, TRIES_MAX) if is_free(port)][:count]
    if len(found) < count:
        raise OSError(f"no {count} free ports on {HOST} between {PORTS.start} and {PORTS.stop}")
    return found
