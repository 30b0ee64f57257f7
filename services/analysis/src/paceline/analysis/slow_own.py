"""Who spends more of a step on its own: the late rank waits for nobody, its victims do.

Own time is what is left of a step after collectives and receives, so lateness that comes from
waiting, in whatever communicator or pipeline, does not count against the one who waited.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints, JobEvidence, Mask
from paceline.contracts.batch import Rows, StepFlag

_SHARE_MIN = 0.3  # of what a step has lost; less does not explain it
_OF_STEP_MIN = 0.01
_NOISE_FACTOR = 6.0  # median deviations among the ranks
_GUILTY_SHARE = 0.1  # more ranks than this share have a cause in common that is none of them


@dataclass(frozen=True)
class OwnTimes:
    """Own time of every rank that shows it, us per step. `rise` is against its own usual time."""

    rank: Ints
    own: npt.NDArray[np.float64]
    rise: npt.NDArray[np.float64]
    based: Mask
    lasting: Mask  # the rise was there in the figures before, too
    step_us: float
    base_step_us: float
    world: int

    @property
    def lost_us(self) -> float:
        return max(self.step_us - self.base_step_us, 0.0)

    def observed(self, rank: int) -> bool:
        return bool((self.rank == rank).any())

    def rise_of(self, rank: int) -> float:
        """Rise of `rank`, 0 where it is not observed."""
        at = np.flatnonzero(self.rank == rank)
        return float(self.rise[at[0]]) if len(at) else 0.0

    @cached_property
    def guilty(self) -> tuple[int, ...]:
        """Ranks whose own time has risen by most of what a step has lost, worst first; few or none."""
        if len(self.rank) < 2 or self.lost_us <= 0:
            return ()
        middle = float(np.median(self.rise))
        noise = float(np.median(np.abs(self.rise - middle)))
        least = max(_SHARE_MIN * self.lost_us, _OF_STEP_MIN * self.step_us, middle + _NOISE_FACTOR * noise)
        worst = float(self.rise.max())
        found = np.flatnonzero(self.based & (self.rise >= max(least, 0.5 * worst)))
        if len(found) > max(1, int(_GUILTY_SHARE * len(self.rank))):
            return ()
        found = found[self.lasting[found]]
        return tuple(int(rank) for rank in self.rank[found[np.argsort(-self.rise[found], kind="stable")]])

    def explains(self, rank: int, lateness_us: float) -> bool | None:
        """Whether `rank` made the lateness itself; None where that is not observed.

        Own times are means over some steps: those from before the trouble say nothing about it.
        """
        at = np.flatnonzero((self.rank == rank) & self.based)
        if not len(at) or lateness_us <= 0 or self.lost_us < _SHARE_MIN * lateness_us:
            return None
        return float(self.rise[at[0]]) >= _SHARE_MIN * lateness_us


def read_own_times(evidence: JobEvidence) -> OwnTimes:
    """From STEP rows; ranks whose own time is not observed are left out."""
    rows: Rows = evidence.steps
    seen = rows[(rows["flags"] & StepFlag.OWN_UNOBSERVED) == 0]
    own = seen["own_us"].astype(np.float64)
    based = (seen["flags"] & StepFlag.NO_BASE) == 0
    rise = np.where(based, own - seen["base_own_us"].astype(np.float64), 0.0)
    return OwnTimes(
        rank=seen["rank"].astype(np.int64),
        own=own,
        rise=rise,
        based=np.asarray(based, np.bool_),
        lasting=np.asarray((seen["flags"] & StepFlag.ONCE) == 0, np.bool_),
        step_us=float(np.median(rows["step_us"])) if len(rows) else 0.0,
        base_step_us=float(np.median(rows["base_step_us"])) if len(rows) else 0.0,
        world=evidence.world_size,
    )
