"""Process groups whose inside is replaced while training holds them (docs/adr/0040-groups-per-generation.md).

    groups = install(job="llama")            # before init_process_group
    dist.init_process_group("gloo")
    ...
    groups.abort(0, "rank 3 is gone")        # from the control thread: every wait raises GenerationEnded
    groups.rebuild(1, 0, store, rank, size, timeout_s=5)     # in the training thread, on every member

torch is imported by `install` only.
"""

from paceline.trainer.groups.errors import (
    GenerationEnded,
    NotSwappable,
    OtherGroups,
    PeerLost,
    RebuildFailed,
)
from paceline.trainer.groups.frameworks import forget_interrupted_step
from paceline.trainer.groups.generation import Generation
from paceline.trainer.groups.install import install
from paceline.trainer.groups.registry import Groups, Prepared, Report
from paceline.trainer.groups.stores import generation_store, host_store, join_store

__all__ = [
    "Generation", "GenerationEnded", "Groups", "NotSwappable", "OtherGroups", "PeerLost", "Prepared",
    "RebuildFailed", "Report", "forget_interrupted_step", "generation_store", "host_store", "install",
    "join_store",
]  # fmt: skip
