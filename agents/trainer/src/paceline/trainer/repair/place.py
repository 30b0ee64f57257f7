"""Where this process is reached, and which objects are its rank's alone."""

import socket
from collections.abc import Mapping

HOST_VARIABLE = "PACELINE_HOST"
LOOPBACK = "127.0.0.1"


def own_address(environment: Mapping[str, str]) -> str:
    """The address at which the other ranks reach this machine.

    `PACELINE_HOST`, else the one from which this machine speaks to MASTER_ADDR, else that of its name.
    """
    declared = environment.get(HOST_VARIABLE, "")
    if declared:
        return declared
    master = environment.get("MASTER_ADDR", "")
    try:
        if master:
            family, _, _, _, address = socket.getaddrinfo(master, 1, socket.AF_INET, socket.SOCK_DGRAM)[0]
            # A datagram socket connects to nobody: it only asks for the route.
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOOPBACK


def follows_rank(thing: object) -> bool:
    """Whether `thing` has no state but its rank: torch's DistributedSampler, told without importing it."""
    names = {kind.__name__ for kind in type(thing).__mro__}
    return "DistributedSampler" in names and not hasattr(thing, "state_dict")
