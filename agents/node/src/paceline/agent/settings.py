"""`PACELINE_AGENT_*`: the node agent's settings."""

import os
from pathlib import Path
from socket import gethostname
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline.contracts.agent_socket import default_socket_path
from paceline.contracts.evidence import ARCHIVE_BYTES_MAX
from paceline.runtime.settings import Count, Seconds

MIB = 1 << 20


def _default_state_dir() -> Path:
    home = os.environ.get("PACELINE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share" / "paceline") / "agent"


class AgentSettings(BaseSettings):
    """What one agent is told; every bound carries its unit."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_AGENT_", frozen=True, extra="ignore")

    # PACELINE_AGENT_SOCKET is read by both sides of the socket.
    socket: Path = Field(default_factory=lambda: Path(default_socket_path()))
    node: Annotated[str, Field(min_length=1, max_length=200)] = Field(default_factory=gethostname)
    state_dir: Path = Field(default_factory=_default_state_dir)
    interval_s: Annotated[float, Field(ge=0.1, le=10.0)] = 1.0
    suspect_s: Seconds = 3.0
    processes_max: Annotated[int, Field(ge=1, le=4096)] = 64
    connections_max: Annotated[int, Field(ge=1, le=8192)] = 256
    memory_bytes_max: Annotated[int, Field(ge=64 << 10)] = 8 * MIB
    ring_bytes_max: Annotated[int, Field(ge=1 * MIB)] = 64 * MIB
    backlog_bytes_max: Count = 16 * MIB  # how much of an earlier agent's ring is still sent
    provisional_s: Seconds = 10.0  # how long a provisional attempt is held back
    republish_s: Seconds = 60.0  # registry records again, in case a topic was lost
    retain_ended_s: Seconds = 60.0  # how long an ended attempt keeps its name
    # How long the registry records of an ended job stay in their topic; while the agent is away they wait.
    registry_retain_s: Annotated[float, Field(gt=0, le=366 * 86_400)] = 86_400.0
    drain_s: Seconds = 3.0
    # While commands reach this node its supervisors get leases of so many seconds; one whose lease has run
    # out stops its training process. 0: none, and a lost node is replaced only if a person says so.
    lease_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    # Devices of this node, read only: NVML by a child, the kernel's log, ports of RDMA devices.
    root: Path = Path("/")  # where dev, proc, sys and var are looked for
    watch_gpus: bool = True
    watch_kernel: bool = True
    watch_ports: bool = True
    gpu_interval_s: Annotated[float, Field(ge=0.05, le=300.0)] = 5.0
    gpu_timeout_s: Seconds = 10.0
    # How much probes are asked for where an operation stands still, and for how long (docs/adr/0037).
    detail_level: Literal["rounds", "edges", "full"] = "edges"
    detail_hold_s: Seconds = 60.0
    detail_s_max: Seconds = 600.0
    detail_per_hour_max: Count = 6
    nccl_logs: bool = True  # read NCCL's logs of observed processes for ring and tree order
    nccl_dumps: bool = True  # and its dumps of graphs
    nccl_dump_settle_s: Seconds = 10.0  # age at which such a file is read
    orders_s: Seconds = 5.0  # between two looks at them
    # What is collected for an incident; a command may ask for less, never for more.
    evidence_bytes_max: Annotated[int, Field(ge=1 * MIB, le=ARCHIVE_BYTES_MAX)] = ARCHIVE_BYTES_MAX
    evidence_s_max: Seconds = 60.0
    evidence_per_hour_max: Count = 20
    # NCCL's RAS, asked for an incident: off, because it runs inside the job (docs/adr/0035-devices.md).
    ras: bool = False
    ras_address: Annotated[str, Field(max_length=300)] = "localhost:28028"
    ras_nccl_version: Annotated[str, Field(max_length=32)] = ""  # of jobs that do not say theirs
