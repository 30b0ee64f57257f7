"""Processes of this node that belong to a distributed job, and what /proc says of them."""

import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from paceline.analysis.collect.bounded import read_bounded

RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
PROCESSES_MAX = 256
READ_S = 2.0
TEXT_MAX = 65_536
_KEPT = re.compile(
    r"(?:TORCH|NCCL|GLOO|PYTORCH|CUDA_VISIBLE|OMPI_COMM_WORLD|RANK$|LOCAL_RANK$|WORLD_SIZE$|LOCAL_WORLD_SIZE$|"
    r"GROUP_RANK$|MASTER_|SLURM_(?:JOB_ID|PROCID|NODEID|NTASKS)$)"
)
_SECRET_NAME = re.compile(
    r"token|secret|passw|credential|api[_-]?key|access[_-]?key|private|auth", re.IGNORECASE
)
_SECRET_FORM = re.compile(
    r"\b(?:hf_\w{8,}|sk-[\w-]{8,}|gh[pousr]_\w{8,}|glpat-[\w-]{8,}|AKIA\w{12,}|xox[abp]-[\w-]{8,}|eyJ[\w.-]{16,})"
)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]{1,256}@")
REMOVED = "(removed)"


@dataclass
class Process:
    """One rank on this node; what is not known is None or empty."""

    pid: int
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)
    wchan: str = ""
    syscall: str = ""
    kernel_stack: str = ""
    threads: list[str] = field(default_factory=list)  # "tid name state wchan"
    missing: list[str] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Name in the archive; readers take the rank from it."""
        return f"rank_{self.rank}" if self.rank is not None else f"pid_{self.pid}"

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def catches(self, signal: int) -> bool:
        """Whether the process handles a signal: an unhandled one would end it."""
        caught = int(self.status.get("SigCgt", "0") or "0", 16)
        return bool(caught >> (signal - 1) & 1)


def find_processes(proc: Path = Path("/proc")) -> list[Process]:
    """The outermost process of each rank among those whose environment may be read."""
    found: dict[int, tuple[Process, int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            environment = _environment(entry)
            if environment.get("RANK", "").isdigit() or _mpi_rank(environment):
                found[int(entry.name)] = (_identity(int(entry.name), environment), _parent(entry))
    if any(
        process.local_rank is not None for process, _ in found.values()
    ):  # launchers of Kubernetes have RANK
        found = {pid: entry for pid, entry in found.items() if entry[0].local_rank is not None}
    outer = [
        process
        for process, parent in found.values()
        if parent not in found or found[parent][0].rank != process.rank
    ]
    return sorted(outer, key=lambda process: (process.rank or 0, process.pid))[:PROCESSES_MAX]


def identify(pid: int, proc: Path = Path("/proc")) -> Process:
    """A process that the user named; it need not have a rank."""
    return _identity(pid, _environment(proc / str(pid)))


def examine(process: Process, proc: Path = Path("/proc")) -> None:
    """Fill in the states; `missing` says what could not be read and why."""
    entry = proc / str(process.pid)
    command = _read(process, entry, "cmdline").rstrip("\0").split("\0")
    process.command = without_secrets([part for part in command if part])
    for line in _read(process, entry, "status").splitlines():
        name, _, value = line.partition(":")
        process.status[name] = value.strip()
    process.wchan = _read(process, entry, "wchan").strip()
    process.syscall = _read(process, entry, "syscall").strip()
    process.kernel_stack = _read(process, entry, "stack")
    tasks = read_bounded("task", lambda: "\n".join(sorted(os.listdir(entry / "task"))).encode(), READ_S)
    for task in (tasks.content or b"").decode().split()[:1024]:
        name = _text(entry / "task" / task / "comm").strip()
        state = _text(entry / "task" / task / "stat").rpartition(")")[2].split()[:1]
        wchan = _text(entry / "task" / task / "wchan").strip()
        process.threads.append(" ".join([task, name, *state, wchan]).strip())


def without_secrets(command: list[str]) -> list[str]:
    """Values of arguments that are secret by name or by form are taken out."""
    kept: list[str] = []
    hide_next = False
    for part in command:
        name, equals, _ = part.partition("=")
        if hide_next and not part.startswith("-"):
            kept.append(REMOVED)
            hide_next = False
            continue
        secret = bool(_SECRET_NAME.search(name)) and len(name) < 80 and not name.endswith(".py")
        hide_next = secret and not equals and part.startswith("-")
        kept.append(f"{name}={REMOVED}" if secret and equals else hide(part))
    return kept


def hide(text: str) -> str:
    """Without credentials in URLs and well-known forms of tokens."""
    return _CREDENTIALS.sub(f"{REMOVED}@", _SECRET_FORM.sub(REMOVED, text))


def _identity(pid: int, environment: dict[str, str]) -> Process:
    rank = next((environment[name] for name in RANK_NAMES if environment.get(name, "").isdigit()), "")
    kept = {
        name: REMOVED if _SECRET_NAME.search(name) else hide(value)[:1000]
        for name, value in sorted(environment.items())
        if _KEPT.match(name)
    }
    return Process(
        pid,
        int(rank) if rank else None,
        _number(environment.get("LOCAL_RANK", "")),
        _number(environment.get("WORLD_SIZE", "")),
        environment=kept,
    )


def _mpi_rank(environment: dict[str, str]) -> bool:
    return "WORLD_SIZE" in environment and any(environment.get(name, "").isdigit() for name in RANK_NAMES)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 10 else None


def _environment(entry: Path) -> dict[str, str]:
    pairs = (part.partition("=") for part in _text(entry / "environ", 1 << 20).split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _parent(entry: Path) -> int:
    fields = _text(entry / "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _read(process: Process, entry: Path, name: str) -> str:
    item = read_bounded(name, lambda: (entry / name).read_bytes()[:TEXT_MAX], READ_S)
    if item.content is None:
        process.missing.append(f"{name}: {item.why}")
    return (item.content or b"").decode("utf-8", "replace")


def _text(path: Path, count_max: int = TEXT_MAX) -> str:
    item = read_bounded(path.name, lambda: path.read_bytes()[:count_max], READ_S)
    return (item.content or b"").decode("utf-8", "replace")
