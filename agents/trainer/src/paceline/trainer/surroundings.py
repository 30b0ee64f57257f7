"""Reads what identity needs from the machine; every file may be missing."""

import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.trainer.identity import Surroundings, parse_pid_start
from paceline.trainer.nccl_loaded import loaded_version

_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_GPUS_MAX = 64
_FILE_BYTES_MAX = 65_536
_LOG_PATH_BYTES_MAX = 4096


def read_surroundings(init_method: str = "") -> Surroundings:
    """One look at /proc, the pod's files and the host name; never raises."""
    labels = os.environ.get("PACELINE_POD_LABELS_FILE", "/etc/podinfo/labels")
    return Surroundings(
        cgroup=read_text("/proc/self/cgroup"),
        pod_labels=read_text(labels),
        pod_namespace=read_text(_NAMESPACE_FILE).strip(),
        hostname=socket.gethostname(),
        init_method=init_method,
        parent=f"{socket.gethostname()}-{os.getppid()}-{_start_of(os.getppid())}",
        gpus=sum(Path(f"/dev/nvidia{index}").exists() for index in range(_GPUS_MAX)),
    )


def pid() -> int:
    return os.getpid()


def user(environment: Mapping[str, str]) -> str:
    """Whose job it is, by name, else by number."""
    return environment.get("USER") or environment.get("LOGNAME") or str(os.getuid())


def nccl_log(environment: Mapping[str, str]) -> str:
    """The file that NCCL writes its log into: %h is the host up to its first dot, %p the process.

    Empty where there is none, or where its name is longer than the agent takes.
    """
    values = {"%h": socket.gethostname().partition(".")[0], "%p": str(os.getpid()), "%%": "%"}
    pattern = environment.get("NCCL_DEBUG_FILE", "")
    path = re.sub("%[hp%]", lambda found: values[found[0]], pattern)
    return path if len(path.encode(errors="replace")) <= _LOG_PATH_BYTES_MAX else ""


def nccl_dumps(environment: Mapping[str, str]) -> tuple[str, str, int]:
    """The files that NCCL dumps its graphs and the machine into, empty where there is none, and which rank of
    each communicator does. The second only where the same rank writes both."""
    paths = [environment.get(name, "") for name in ("NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE")]
    graph, machine = (
        path if len(path.encode(errors="replace")) <= _LOG_PATH_BYTES_MAX else "" for path in paths
    )
    ranks = [
        _parse_rank(environment.get(name, ""))
        for name in ("NCCL_GRAPH_DUMP_FILE_RANK", "NCCL_TOPO_DUMP_FILE_RANK")
    ]
    return graph, machine if ranks[0] == ranks[1] else "", ranks[0]


def _parse_rank(text: str) -> int:
    """NCCL takes 0 where it cannot read a number."""
    try:
        rank = int(text, 0)
    except ValueError:
        return 0
    return rank if 0 <= rank < 1 << 31 else 0


def pid_start() -> int:
    """Start time of this process in clock ticks since boot, 0 where /proc does not say."""
    return _start_of(os.getpid())


def versions(torch_version: str) -> dict[str, str]:
    """What the registry records of the software in this process."""
    python = ".".join(map(str, sys.version_info[:3]))
    torch = {"torch": torch_version} if torch_version else {}
    return {"python": python, **torch, **loaded_version()}


def read_text(path: str) -> str:
    """The first 64 KiB of a small file, or nothing."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""


def _start_of(pid: int) -> int:
    return parse_pid_start(read_text(f"/proc/{pid}/stat"))
