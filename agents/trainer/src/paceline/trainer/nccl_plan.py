"""What `paceline run` turns on for the NCCL that was found: a pure decision with a named reason for each
part. It changes nothing that a user has set, except to chain it behind ours."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from paceline.trainer.nccl_found import Family, FoundNccl, Version
from paceline.trainer.settings import is_disabled

PLUGIN_VARIABLE = "NCCL_PROFILER_PLUGIN"
CHAIN_VARIABLE = "PACELINE_CHAIN_PROFILER"
PRELOAD_VARIABLE = "LD_PRELOAD"
TIER_VARIABLE = "PACELINE_NCCL_TIER"
PLUGIN_SINCE: Version = (2, 27, 3)  # profiler interface 4
CALLS_SINCE: Version = (2, 28, 0)  # interface 5: calls themselves
RCCL_SINCE: Version = (2, 28, 0)  # 2.27.7 crashes in AllToAll with any profiler in some ROCm 7.1 releases
SHM_BYTES_MIN = 1 << 30  # of the nodes of real jobs; containers have 64 MiB unless told otherwise
STATIC_WORD = "STATIC_PLUGIN"


class Reason(str, Enum):
    """Why a part is on or off."""

    CALLS = "calls"  # everything that the plugin can see
    ENQUEUED = "enqueued"  # interface 4: not the call, only what was enqueued
    VERSION_UNKNOWN = "version_unknown"  # set all the same: a library that does not know it ignores it
    ALREADY_SET = "already_set"
    BELOW_PLUGIN = "below_plugin"
    BESIDE_PLUGIN = "beside_plugin"
    DISABLED = "disabled"
    NO_NCCL = "no_nccl"
    TOO_OLD = "too_old"
    RCCL_OLD = "rccl_old"
    RCCL = "rccl"
    NOT_BUILT = "not_built"
    NOT_NEEDED = "not_needed"
    NO_VERSION = "no_version"
    USER_SAYS_NONE = "user_says_none"
    USER_HAS_STATIC = "user_has_static"
    CHAIN_TAKEN = "chain_taken"
    CHAINED = "chained"

    @property
    def is_on(self) -> bool:
        return self in _ON


_ON = frozenset(
    {
        Reason.CALLS, Reason.ENQUEUED, Reason.VERSION_UNKNOWN, Reason.ALREADY_SET, Reason.BELOW_PLUGIN,
        Reason.BESIDE_PLUGIN, Reason.CHAINED,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Files:
    """What this installation and this machine have."""

    plugin: str | None
    shim: str | None
    conf: Mapping[str, str] = field(default_factory=dict)  # NCCL's own configuration files
    shm_bytes: int | None = None


@dataclass(frozen=True)
class Part:
    """One thing that can be turned on, and whether it is."""

    name: str
    reason: Reason
    words: str


@dataclass(frozen=True)
class NcclPlan:
    """`variables` are to be set; everything else of the environment stays."""

    found: FoundNccl
    parts: tuple[Part, ...]
    variables: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """A few lines for people: what was found, what is on, what is not and why."""
        lines = [describe(self.found)]
        lines += [f"{'on ' if part.reason.is_on else 'off'} {part.name}: {part.words}" for part in self.parts]
        return [*lines, *self.notes]


def plan_nccl(found: FoundNccl, environment: Mapping[str, str], files: Files) -> NcclPlan:
    """Decide every part; the same inputs give the same plan."""
    if is_disabled(environment):
        return NcclPlan(found, (Part("NCCL", Reason.DISABLED, "PACELINE_DISABLED is set"),), {})
    if found.family is Family.NONE:
        words = "the torch hook alone observes this job"
        return NcclPlan(found, (Part("NCCL", Reason.NO_NCCL, words),), {})
    plugin, variables = _plan_plugin(found, environment, files)
    shim, preload = _plan_shim(found, environment, files, plugin[0].reason.is_on)
    return NcclPlan(found, (*plugin, shim), {**variables, **preload}, _notes(files))


def describe(found: FoundNccl) -> str:
    """For example `NCCL 2.29.7 (nvidia-nccl-cu13, torch 2.13.0)`."""
    torch = f"torch {found.torch}" if found.torch else "no torch"
    if found.family is Family.NONE:
        return f"no NCCL found ({torch})"
    if found.family is Family.UNKNOWN:
        return f"NCCL's version is not known: {found.why}"
    number = ".".join(map(str, found.version)) if found.version else "of unknown version"
    return f"{found.family.value} {number} ({', '.join(filter(None, (found.source, torch)))})"


def _plan_plugin(
    found: FoundNccl, environment: Mapping[str, str], files: Files
) -> tuple[tuple[Part, ...], dict[str, str]]:
    name = "profiler plugin"
    reason, words = _can_load(found)
    if reason.is_on and files.plugin is None:
        reason, words = Reason.NOT_BUILT, "it was not built with paceline-probe (needs a C++ compiler)"
    theirs = environment.get(PLUGIN_VARIABLE) or files.conf.get(PLUGIN_VARIABLE, "")
    if not reason.is_on or files.plugin is None:
        return (Part(name, reason, words),), {}
    words = f"{words}; {_tier_words(environment)}"
    if not theirs:
        return (Part(name, reason, words),), {PLUGIN_VARIABLE: files.plugin}
    if os.path.basename(theirs) == os.path.basename(files.plugin):
        return (Part(name, Reason.ALREADY_SET, f"{PLUGIN_VARIABLE} was set; {words}"),), {}
    if theirs.lower() == "none":
        return (Part(name, Reason.USER_SAYS_NONE, f"{PLUGIN_VARIABLE}=none was set and stays"),), {}
    if STATIC_WORD.lower().startswith(theirs.lower()):
        static = f"{PLUGIN_VARIABLE}={theirs} means the program's own profiler; NCCL loads only one"
        return (Part(name, Reason.USER_HAS_STATIC, static),), {}
    wanted, chained = chain_path(theirs), environment.get(CHAIN_VARIABLE, "")
    if chained not in ("", wanted, theirs):
        taken = f"{PLUGIN_VARIABLE}={theirs} was set, and {CHAIN_VARIABLE}={chained} too; unset one of them"
        return (Part(name, Reason.CHAIN_TAKEN, taken),), {}
    behind = Part("second profiler", Reason.CHAINED, f"{wanted} is called behind ours")
    return (Part(name, reason, words), behind), {
        PLUGIN_VARIABLE: files.plugin,
        CHAIN_VARIABLE: wanted,
    }


def _can_load(found: FoundNccl) -> tuple[Reason, str]:
    """Whether this library takes our plugin, and what it will show."""
    version = found.version
    if found.family is Family.UNKNOWN or version is None:
        return Reason.VERSION_UNKNOWN, "set; a library that does not know it ignores it"
    if found.family is Family.RCCL and version < RCCL_SINCE:
        return Reason.RCCL_OLD, (
            "RCCL before 2.28 may crash in AllToAll with any profiler; to use it all the same set "
            f"{PLUGIN_VARIABLE} to $(python -m paceline.probe.nccl)"
        )
    if version < PLUGIN_SINCE:
        return Reason.TOO_OLD, "needs NCCL 2.27.3 or newer (torch 2.8)"
    if version < CALLS_SINCE:
        return Reason.ENQUEUED, "operations are seen when they are enqueued, not when they are called"
    return Reason.CALLS, "calls, launches and tasks are seen"


def _tier_words(environment: Mapping[str, str]) -> str:
    tier = environment.get(TIER_VARIABLE, "0")
    if tier in ("1", "2"):
        return f"detail {tier} of 2 from the start"
    return "links and kernels when the job is suspect"


def chain_path(name: str) -> str:
    """What dlopen is given for a name that NCCL would look up itself."""
    plain = "/" in name or (name.startswith("lib") and name.endswith(".so"))
    return name if plain else f"libnccl-profiler-{name}.so"


def _plan_shim(
    found: FoundNccl, environment: Mapping[str, str], files: Files, plugin_is_on: bool
) -> tuple[Part, dict[str, str]]:
    name = "preload shim"
    if found.version is None:
        return Part(name, Reason.NO_VERSION, "only for a version that is known to need it"), {}
    if found.family is Family.RCCL:
        return Part(name, Reason.RCCL, "for NCCL only"), {}
    if found.version >= CALLS_SINCE:
        return Part(name, Reason.NOT_NEEDED, "not needed from NCCL 2.28 on"), {}
    if files.shim is None:
        return Part(name, Reason.NOT_BUILT, "it was not built with paceline-probe (needs a C++ compiler)"), {}
    others = [word for word in environment.get(PRELOAD_VARIABLE, "").replace(":", " ").split() if word]
    words = "calls, signatures, groups and initialisation are seen"
    if any(os.path.basename(word) == os.path.basename(files.shim) for word in others):
        return Part(name, Reason.ALREADY_SET, f"{PRELOAD_VARIABLE} was set; {words}"), {}
    reason = Reason.BESIDE_PLUGIN if plugin_is_on else Reason.BELOW_PLUGIN
    return Part(name, reason, words), {PRELOAD_VARIABLE: ":".join([files.shim, *others])}


def _notes(files: Files) -> tuple[str, ...]:
    if files.shm_bytes is None or files.shm_bytes >= SHM_BYTES_MIN:
        return ()
    size = files.shm_bytes >> 20
    return (f"shared memory has {size} MiB, NCCL wants more (docker run --shm-size 8g; docs/nccl.md)",)
