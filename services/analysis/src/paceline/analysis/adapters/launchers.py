"""What Slurm, Kubernetes, Ray and torchelastic say of the ends of processes.

Ranks of srun are its tasks; a pod's number is no rank. A cancellation ends everybody: it is nobody's death.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.adapters.prefixes import iso_seconds
from paceline.analysis.adapters.torch_reports import RANKS_LISTED_MAX, ranks_of
from paceline.analysis.facts import (
    Clock,
    Fact,
    Group,
    HostKill,
    Membership,
    PhaseKind,
    PhaseSeen,
    ProcessEnd,
    SettingSeen,
)

TASKS_MAX = 4096
_SRUN = re.compile(
    r"srun: error: (?P<host>[\w.,\[\]-]{1,200}): tasks? (?P<tasks>[\d,-]{1,400}): (?P<what>[A-Za-z][\w "
    r"().-]{0,80})"
)
_SRUN_NODE = re.compile(r"srun: error: Node failure on (?P<host>[\w.,\[\]-]{1,200})")
_LAUNCH = re.compile(
    r"srun: error: Task launch for [\w.=]{1,60} failed on node (?P<host>[\w.-]{1,64}): (?P<why>.{1,120})"
    r"|ssh: (?:connect to host|Could not resolve hostname) (?P<other>[\w.-]{1,128}?)(?: port \d{1,5})?: "
    r"(?P<words>.{1,120})"
)
_EXIT = re.compile(r"exit code (?P<code>\d{1,3})")
_STEP = re.compile(
    r"\*\*\* (?:JOB|STEP) (?P<id>[\w.+-]{1,40}) ON (?P<host>[\w.-]{1,64}) (?:CANCELLED|FAILED)(?P<why>.{0,"
    r"120})"
)
_CANCELLED_AT = re.compile(r" AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_OOM_EVENT = re.compile(r"[Dd]etected (?P<count>\d{1,6}) oom[-_]kill event")
_WORDS = {
    "Killed": 9,
    "Segmentation": 11,
    "Aborted": 6,
    "Terminated": 15,
    "Bus": 7,
    "Illegal": 4,
    "Floating": 8,
}
_POD = re.compile(
    r"^\s{0,8}(?P<pod>[a-z0-9][a-z0-9./-]{1,120})\s{1,40}\d{1,3}/\d{1,3}\s{1,40}(?:Init:)?"
    r"(?P<status>OOMKilled|Evicted|NodeLost|NodeAffinity|NodeShutdown|Preempting|ContainerStatusUnknown)\b"
)
_NAME = re.compile(r"^Name:\s{1,40}(?P<name>[\w./-]{1,120})\s{0,8}$")
_NODE = re.compile(r"^Node:\s{1,40}(?P<node>[\w.-]{1,64})(?:/|\s{0,8}$)")
_EXIT_CODE = re.compile(r"^\s{1,20}Exit Code:\s{1,40}(?P<code>\d{1,3})\s{0,8}$")
_EVENT = re.compile(
    r"\b(?:Warning|Normal)\s{1,20}(?:Evicted|NodeNotReady|TaintManagerEviction|Preempted|NodeShutdown)\b|"
    r"The node (?:\S{1,64} )?was low on resource|status is now: NodeNotReady"
)
_NODE_GONE = re.compile(r"NodeLost|(?:Node (?P<node>[\w.-]{1,64}) )?status is now: NodeNotReady")
_RAY_NODE = re.compile(
    r"node .{0,120}?\baddress: (?P<ip>[\w.:-]{1,64}?)(?: and .{0,80})? has been marked dead"
    r"|(?:its|actor's) node (?:has died|was terminated)"
)
_RAY = re.compile(
    r"worker (?:process )?has died|Worker unexpectedly exits|The actor died unexpectedly|"
    r"A worker died or was killed|node .{0,120}has been marked dead|Task was killed due to the node "
    r"running low|"
    r"The worker died unexpectedly while executing|Worker proc(?:ess)? \S{1,64} died unexpectedly|"
    r"killed by the (?:Ray )?memory monitor"
)
_RAY_PID = re.compile(r"\bpid=(?P<pid>\d{1,9}), memory used")
_RAY_IP = re.compile(r"\(IP: (?P<ip>[\w.:-]{1,64}), ID")
_RAY_MEMORY = re.compile(r"running low on memory|memory monitor|OutOfMemoryError")
_NUMBERED = re.compile(r"Worker proc(?:ess)? [A-Za-z]\w{0,40}-(?P<rank>\d{1,6}) died")  # vLLM's executor
_RAY_FIELD = re.compile(r"^\s{1,16}(?P<key>pid|ip):\s{1,8}(?P<value>[\w.:]{1,64})\s{0,8}$")
_FINISHED = re.compile(
    r"All workers successfully finished|worker group successfully finished|local worker group finished"
)
_DESTROY = re.compile(r"destroy_process_group")
_SHELL = re.compile(
    r"(?:\S{1,200}: line \d{1,6}:\s{1,8}(?P<pid>\d{1,9})\s{1,8})?"
    r"(?P<what>Killed|Segmentation fault|Bus error)(?: \(core dumped\))?(?(pid)\s|\s{0,8}$)"
)
_CHILD = re.compile(
    r"(?:Child process with PID (?P<pid>\d{1,9}) terminated|"
    r"Global rank (?P<rank>\d{1,7}) \(PID (?P<number>\d{1,9})\) exited) with code (?P<code>-?\d{1,3})"
)
_WORLD = re.compile(
    r"(?:global|role)_world_sizes=\[(?P<many>\d{1,7})\b|"
    r"(?<![\w-])(?<!parallel )(?:WORLD_SIZE|[Ww]orld[_ ]size)\s?[=:]\s?(?P<one>\d{1,7})\b"
)
_STARTS = re.compile(
    r"Setting OMP_NUM_THREADS environment variable for each process|Starting worker group|"
    r"[Ss]tarting workers for entrypoint|Starting elastic_operator|\bRestarting worker group|"
    r"Rendezvous'ing worker group"
)


class SlurmEnds:
    """`srun: error:` and `slurmstepd: error:`."""

    name = "slurm"
    needles = (
        "srun: error",
        "ssh: co",
        "ssh: Could",
        "slurmstepd",
        "oom_kill event",
        "oom-kill event",
        "*** JOB",
        "*** STEP",
    )

    def read(self, block: Block) -> Iterator[Fact]:
        text, base = block.line.text[:LOOK_CHARS], base_of(block)
        if found := _SRUN.search(text):
            yield from self._tasks(base, found, text)
        elif found := _SRUN_NODE.search(text):
            base["speaker"] = replace(base["speaker"], rank=None, host=found["host"])
            yield ProcessEnd(**base, signal=9, node_lost=True, text=text[:500])
        elif found := _LAUNCH.search(text):
            base["speaker"] = replace(base["speaker"], rank=None, host=found["host"] or found["other"])
            why = (found["why"] or f"ssh: {found['words']}").strip()
            yield SettingSeen(**base, name="launch_failed", value=why, text=text[:300])
        elif _OOM_EVENT.search(text):
            base["speaker"] = replace(base["speaker"], rank=None)
            yield HostKill(**base, text=text[:500])
        elif found := _STEP.search(text):
            failed = "NODE FAIL" in found["why"].upper()
            base["speaker"] = replace(base["speaker"], rank=None)
            if base["time_s"] is None and (moment := _CANCELLED_AT.search(found["why"])):
                base["time_s"], base["clock"] = iso_seconds(moment[1]), Clock.UNIX
            yield ProcessEnd(**base, signal=9 if failed else 15, text=text[:500])

    def _tasks(self, base: dict[str, Any], found: re.Match[str], text: str) -> Iterator[Fact]:
        what, code = found["what"], _EXIT.search(found["what"])
        hosts = found["host"]
        for task in ranks_of(found["tasks"])[:TASKS_MAX]:
            host = hosts if "[" not in hosts and "," not in hosts else ""
            speaker = replace(base["speaker"], rank=task, host=host)
            if "memory" in what.lower():
                yield HostKill(**{**base, "speaker": speaker}, text=text[:500])
                continue
            exit_code = int(code["code"]) if code else None
            signal = None if code else _WORDS.get(what.split()[0])
            yield ProcessEnd(
                **{**base, "speaker": speaker},
                exit_code=exit_code,
                signal=signal,
                clean=exit_code == 0,
                text=text[:500],
            )


class KubernetesEnds:
    """`kubectl get pods`, `kubectl describe pod` and events."""

    name = "kubernetes"
    needles = (
        "OOMKilled", "Evicted", "NodeNotReady", "NodeLost", "Exit Code:", "Name:", "Node:", "Eviction",
        "Preempt",
        "was low on resource", "NodeShutdown", "NodeAffinity", "ContainerStatusUnknown", "DisruptionTarget",
    )  # fmt: skip

    def __init__(self) -> None:
        self._file, self._line, self._pod, self._node = "", 0, "", ""

    def read(self, block: Block) -> Iterator[Fact]:
        origin, text = block.line.origin, block.line.text[:LOOK_CHARS]
        if origin.file != self._file or origin.line < self._line:
            self._pod = self._node = ""
        self._file, self._line = origin.file, origin.line
        if found := _NAME.match(text):
            self._pod, self._node = found["name"], ""
        elif found := _NODE.match(text):
            self._node = found["node"]
        else:
            yield from self._end(block, text)

    def _end(self, block: Block, text: str) -> Iterator[Fact]:
        base = base_of(block)
        base["speaker"] = replace(base["speaker"], host=self._node or base["speaker"].host)
        row = _POD.match(text)
        pod = row["pod"] if row else self._pod
        if "OOMKilled" in text:
            yield HostKill(**base, name=pod, text=f"{pod} {text.strip()}".strip()[:500])
        elif found := _EXIT_CODE.match(text):
            code = int(found["code"])
            signal = code - 128 if 128 < code < 160 else None
            words = f"{pod} exit code {code}".strip()
            yield ProcessEnd(**base, exit_code=code, signal=signal, clean=code == 0, name=pod, text=words)
        elif row or _EVENT.search(text[:1000]):
            lost = _NODE_GONE.search(text[:1000])
            gone = (lost["node"] or "") if lost else ""
            base["speaker"] = replace(base["speaker"], host=gone or base["speaker"].host)
            words = f"{pod} {text.strip()}".strip()[:500]
            yield ProcessEnd(**base, signal=9, node_lost=lost is not None, name=pod, text=words)


class RayEnds:
    """Ray's words for a lost worker, actor or node; pid and address may stand in the lines below."""

    name = "ray"
    needles = (
        "died",
        "was terminated",
        "unexpectedly exits",
        "marked dead",
        "low on memory",
        "or was killed",
        "memory monitor",
    )

    def read(self, block: Block) -> Iterator[Fact]:
        text, base = block.line.text[:LOOK_CHARS], base_of(block)
        if not _RAY.search(text) and not _RAY_NODE.search(text):
            return
        fields: dict[str, str] = {}
        for line in list(block.after)[:12]:
            if found := _RAY_FIELD.match(line.text[:LOOK_CHARS]):
                fields.setdefault(found["key"], found["value"])
        pid = int(fields["pid"]) if fields.get("pid", "x").isdecimal() and len(fields["pid"]) < 10 else None
        speaker = base["speaker"]
        if numbered := _NUMBERED.search(text):
            speaker = replace(speaker, rank=int(numbered["rank"]), pid=None)
        base["speaker"] = replace(speaker, pid=pid, host=fields.get("ip") or speaker.host)
        if lost := _RAY_NODE.search(text):
            host = lost["ip"] or base["speaker"].host
            base["speaker"] = replace(base["speaker"], rank=None, pid=None, host=host)
            yield ProcessEnd(**base, node_lost=True, text=text[:500])
        elif _RAY_MEMORY.search(text):
            below = " ".join([text, *(line.text[:LOOK_CHARS] for line in list(block.after)[:2])])
            if pid is None and (found := _RAY_PID.search(below)):
                host = _RAY_IP.search(below)
                place = host["ip"] if host else base["speaker"].host
                base["speaker"] = replace(base["speaker"], pid=int(found["pid"]), host=place)
            yield HostKill(**base, name="ray worker", text=text[:500])
        else:
            yield ProcessEnd(**base, text=text[:500])


class CleanEnds:
    """Workers that ended well, and process groups that are taken down."""

    name = "clean ends"
    needles = ("successfully finished", "group finished", "destroy_process_group")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if _FINISHED.search(text):
            yield ProcessEnd(**base_of(block), exit_code=0, clean=True, text=text[:500])
        elif _DESTROY.search(text) and 'File "' not in text:
            ended = "was not called before program exit" in text or "NOT been called" in text
            yield PhaseSeen(**base_of(block), kind=PhaseKind.FINISHED, ended=ended, text=text[:500])


class ShellEnds:
    """A shell's word on a process that a signal ended: `Killed`, `run.sh: line 12: 6612 Killed  python`."""

    name = "shell"
    needles = ("Killed", "Segmentation fault", "Bus error")

    def read(self, block: Block) -> Iterator[Fact]:
        found = _SHELL.match(block.line.text)
        if not found:
            return
        base = base_of(block)
        if found["pid"]:
            base["speaker"] = replace(base["speaker"], pid=int(found["pid"]))
        signal = _WORDS[found["what"].split()[0]]
        yield ProcessEnd(**base, signal=signal, text=block.line.text.strip()[:200])


class ObservedChildren:
    """Lightning's observer of its children (the number in front is the child's), Composer's launcher."""

    name = "observed children"
    needles = ("Child process with PID", ") exited with code")

    def read(self, block: Block) -> Iterator[Fact]:
        if found := _CHILD.search(block.line.text[:2000]):
            base, code = base_of(block), int(found["code"])
            rank = int(found["rank"]) if found["rank"] else base["speaker"].rank
            base["speaker"] = replace(base["speaker"], rank=rank, pid=int(found["pid"] or found["number"]))
            signal = -code if code < 0 else None
            yield ProcessEnd(
                **base, exit_code=code, signal=signal, clean=code == 0, text=block.line.text.strip()[:200]
            )


class WorldSizes:
    """The number of processes of a job, as launchers and frameworks print it."""

    name = "world size"
    needles = ("orld_size", "WORLD_SIZE", "orld size")

    def read(self, block: Block) -> Iterator[Fact]:
        if found := _WORLD.search(block.line.text[:2000]):
            size = int(found["one"] or found["many"])
            if 1 < size <= RANKS_LISTED_MAX:
                yield Membership(**base_of(block), group=Group(size=size))


class LauncherStarts:
    """torchrun's words before it starts workers: after a failure they begin the next attempt."""

    name = "launcher starts"
    needles = ("OMP_NUM_THREADS", "worker group", "orkers for entrypoint", "elastic_operator")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text
        if found := _STARTS.search(text):
            yield SettingSeen(**base_of(block), name="launcher_start", value="torchrun", text=found[0])
