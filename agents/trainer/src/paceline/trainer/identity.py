"""Who this process is: job, attempt, rank; pure functions of an injected environment.

Rules of docs/adr/0009-job-identity.md. Names are only names: nothing here grants anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.contracts.ids import derived_id

Environment = Mapping[str, str]
JOB_CHARACTERS_MAX = 127  # bytes of the page header's job field, less the NUL
_SLURM_CGROUP = re.compile(r"(?:^|/)job_(\d+)(?:/|$)", re.MULTILINE)
_POD_SUFFIX = re.compile(r"-(?:master|worker|launcher|chief|ps|node)-\d+$")
_POD_LABELS = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)


@dataclass(frozen=True)
class Sourced:
    """A value and the rule that gave it."""

    value: str
    source: str


@dataclass(frozen=True)
class Ranks:
    """-1 or 0 where the environment does not say."""

    rank: int
    world_size: int
    local_rank: int


@dataclass(frozen=True)
class Surroundings:
    """What is read from outside the environment, so that the rules stay pure."""

    cgroup: str = ""  # /proc/self/cgroup
    pod_labels: str = ""  # downward API file, one KEY="VALUE" a line
    pod_namespace: str = ""
    hostname: str = ""
    init_method: str = ""  # of init_process_group, where it was given
    parent: str = ""  # same text for all processes of one parent, last resort
    gpus: int = 0  # NVIDIA devices of the node


def job_identity(environment: Environment, around: Surroundings, declared: str = "") -> Sourced:
    """Job id and its source: declared, slurm, kubernetes, torchrun or generated."""
    explicit = declared or environment.get("PACELINE_JOB_ID", "")
    if explicit:
        return _named(explicit, "declared")
    slurm = slurm_job(environment, around.cgroup)
    if slurm:
        return _named(slurm, "slurm")
    owner = pod_owner(environment, around)
    if owner:
        return _named(owner, "kubernetes")
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        return _named(run, "torchrun")
    return Sourced(generated_job(environment, around), "generated")


def slurm_job(environment: Environment, cgroup: str) -> str:
    """`slurm-JOB` or `slurm-ARRAY_TASK`; the cgroup wins where a shell inherited another job's variables."""
    seen = _SLURM_CGROUP.search(cgroup)
    job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or ""
    if seen and seen.group(1) != job:
        return f"slurm-{seen.group(1)}"
    if not job:
        return ""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"slurm-{array}_{task}" if array and task else f"slurm-{job}"


def pod_owner(environment: Environment, around: Surroundings) -> str:
    """`k8s-NAMESPACE-OWNER` of the pod: declared, from its labels, or from the shape of its name."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return ""
    owner = environment.get("PACELINE_POD_OWNER") or _label(around.pod_labels)
    if not owner:
        pod = environment.get("POD_NAME") or environment.get("HOSTNAME") or around.hostname
        index = environment.get("JOB_COMPLETION_INDEX")
        if index and pod.endswith(f"-{index}"):
            owner = pod[: -len(index) - 1]
        elif _POD_SUFFIX.search(pod):
            owner = _POD_SUFFIX.sub("", pod)
    namespace = environment.get("POD_NAMESPACE") or around.pod_namespace
    return "-".join(filter(None, ("k8s", namespace, owner))) if owner else ""


def generated_job(environment: Environment, around: Surroundings) -> str:
    """The same id on every rank without talking to any: from where the ranks meet."""
    meeting = (environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", ""))
    if all(meeting):
        parts: tuple[str, ...] = (*meeting, environment.get("WORLD_SIZE", ""))
    else:
        parts = (around.init_method or around.parent,)
    return f"job-{derived_id('x', *parts)[2:14]}"


def provisional_attempt(environment: Environment, declared: str = "") -> Sourced:
    """Before the job's store exists: declared, else the restart count as a placeholder."""
    explicit = declared or environment.get("PACELINE_ATTEMPT", "")
    return Sourced(explicit, "declared") if explicit else Sourced(restart_attempt(environment), "provisional")


def restart_attempt(environment: Environment) -> str:
    """`r0`, `r1`, ... from torchrun or Slurm; `r0` where nobody counts."""
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        if environment.get(name, "").isdigit():
            return f"r{int(environment[name])}"
    return "r0"


def settled_attempt(environment: Environment, provisional: Sourced, nonce: str) -> Sourced:
    """The final attempt: declared stays, a nonce of the job's store wins, else the restart count."""
    if provisional.source == "declared":
        return provisional
    if nonce:
        return Sourced(f"{restart_attempt(environment)}-{nonce}"[:63], "store")
    return Sourced(restart_attempt(environment), "restart_count")


def read_ranks(environment: Environment) -> Ranks:
    """Rank, world size and local rank of torchrun, Slurm or Open MPI."""
    return Ranks(
        _number(environment, -1, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
        _number(environment, 0, "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"),
        _number(environment, -1, "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
    )


def read_gpu(environment: Environment, local_rank: int, devices: int) -> int | None:
    """Index of this rank's GPU on its node, None where nothing says; `devices` is how many the node has.

    A launcher gives each local rank one device, or shows each process only its own.
    """
    visible = [
        part.strip() for part in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()
    ]
    if "CUDA_VISIBLE_DEVICES" in environment:
        if len(visible) == 1:
            chosen = visible[0]
        else:
            chosen = visible[local_rank] if 0 <= local_rank < len(visible) else ""
        return int(chosen) if chosen.isdigit() else None
    return local_rank if 0 <= local_rank < devices else None


def parse_pid_start(stat: str) -> int:
    """Field 22 of /proc/PID/stat; the command in field 2 may hold spaces and brackets. 0 where torn."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0


def _named(value: str, source: str) -> Sourced:
    # A colon separates the parts of record keys; the agent refuses an id that has one.
    cleaned = "".join(c if c.isprintable() and c != ":" else "_" for c in value)
    return Sourced(cleaned.encode()[:JOB_CHARACTERS_MAX].decode(errors="ignore"), source)


def _number(environment: Environment, otherwise: int, *names: str) -> int:
    for name in names:
        text = environment.get(name, "")
        if text.isdigit():
            return int(text)
    return otherwise


def _label(text: str) -> str:
    labels = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    for name in _POD_LABELS:
        if labels.get(name, "").strip('"'):
            return labels[name].strip('"')
    return ""
