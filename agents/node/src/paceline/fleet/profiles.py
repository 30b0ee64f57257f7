"""What a source of probe pages can see; what it cannot see is flagged, never written as 0.

Facts behind the profiles: without the plugin torch sees calls and, on gloo, completions; NCCL's
cheapest tier sees calls only; kernel events show completion and durations; proxy steps show counts
and waits, and only on edges that leave the node (NVLink and shared memory have none); our own
kernels count every edge.
"""

from dataclasses import dataclass
from enum import Enum

from paceline.contracts.codes import FrameFlag, Source


class ProfileName(str, Enum):
    GLOO = "gloo"
    NCCL0 = "nccl0"
    NCCL1 = "nccl1"
    NCCL2 = "nccl2"
    NVLINK_ONLY = "nvlink"
    KERNELS = "kernels"


@dataclass(frozen=True)
class Profile:
    """One way of observing a job."""

    name: ProfileName
    backend: str
    sources: Source
    blocking: bool  # calls return when done: no run-ahead
    completion: bool  # completions and durations are seen
    network_counts: bool  # counts and waits of edges between nodes are seen
    local_counts: bool  # and of edges inside a node

    @property
    def flags(self) -> FrameFlag:
        """Flags that hold for every frame; counts are flagged per frame where only some edges are seen."""
        flags = FrameFlag.NONE
        if not self.completion:
            flags |= FrameFlag.COMPLETION_UNOBSERVABLE
        if not self.network_counts:
            flags |= FrameFlag.COUNTS_UNOBSERVABLE
        return flags

    @staticmethod
    def named(name: "ProfileName | str") -> "Profile":
        """The profile called `name`; ValueError lists the names that exist."""
        try:
            return PROFILES[ProfileName(name)]
        except ValueError:
            known = ", ".join(each.value for each in ProfileName)
            raise ValueError(f"profile is {name!r}, expected one of {known}") from None


_NCCL = Source.TORCH_HOOK | Source.NCCL_PROFILER | Source.SIMULATOR
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(ProfileName.GLOO, "gloo", Source.TORCH_HOOK | Source.SIMULATOR, True, True, False, False),
        Profile(ProfileName.NCCL0, "nccl", _NCCL, False, False, False, False),
        Profile(ProfileName.NCCL1, "nccl", _NCCL, False, True, False, False),
        Profile(ProfileName.NCCL2, "nccl", _NCCL, False, True, True, False),
        Profile(ProfileName.NVLINK_ONLY, "nccl", _NCCL, False, True, False, False),
        Profile(ProfileName.KERNELS, "paceline", Source.KERNEL | Source.SIMULATOR, False, True, True, True),
    )
}
