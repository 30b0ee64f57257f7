"""A standby that becomes one rank or another: what is its rank's, and which objects are protected there.

Everything here happens in groups that answer by themselves, so a script may make its stage with any
collective it likes, and nobody waits for it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from paceline.contracts.recovery import Support
from paceline.trainer.groups import OtherGroups, RebuildFailed
from paceline.trainer.repair.loopback import LoopbackBackend
from paceline.trainer.repair.place import follows_rank
from paceline.trainer.repair.protecting import Protection
from paceline.trainer.repair.support import support_of
from paceline.trainer.repair.wiring import Wiring

log = logging.getLogger("paceline")
REHEARSALS_MAX = 64
Place = Callable[[int], Mapping[str, Any]]


class Placing:
    """Asked by the training thread alone. Without `offer` the objects of `open` are those of every rank."""

    def __init__(self, wired: Wiring, protection: Protection, objects: Mapping[str, Any]) -> None:
        self._wired = wired
        self._protection = protection
        self._objects = dict(objects)
        self._place: Place | None = None
        self._ranks: tuple[int, ...] = ()
        self._support, self._kind = support_of(self._objects, wired.size)
        self.fits = True  # some rank that was asked for, if any was, could be rehearsed

    @property
    def differs(self) -> bool:
        """Whether the script gives other objects for other ranks."""
        return self._place is not None

    def offer(self, place: Place, ranks: Sequence[int]) -> None:
        """`place(rank)` gives the protected objects of a rank, `ranks` are those to warm up as.

        ValueError for a rank that the job has not, and for more than REHEARSALS_MAX.
        """
        strange = [rank for rank in ranks if not 0 <= rank < self._wired.size]
        if strange or len(ranks) > REHEARSALS_MAX:
            raise ValueError(
                f"ranks is {list(ranks)[:8]}, expected at most {REHEARSALS_MAX} ranks "
                f"from 0 to {self._wired.size - 1}"
            )
        self._place, self._ranks = place, tuple(ranks)
        self._support, self._kind = support_of(self._objects, self._wired.size, placed=True)

    def tell_support(self) -> str:
        """What is known of this job, once the script has said all it says before its steps."""
        if self._support is not Support.VERIFIED:
            log.warning("paceline: repair is %s for this layout: %s", self._support.value, self._kind)
        return self._support.value

    def rehearsals(self) -> Iterator[int]:
        """The ranks as which this standby warms up; it is each of them while the caller holds it.

        What the script's `place` raises goes on. Afterwards `fits` says whether it can be any of them.
        """
        warmed = False
        for rank in self._ranks:
            try:
                self._become(rank)
            except OtherGroups as error:
                log.warning("paceline: this standby cannot take the place of rank %d: %s", rank, error)
            else:
                warmed = True
                yield rank
        self.fits = warmed or not self._ranks
        if not warmed:
            yield self._wired.rank

    def become(self, rank: int) -> None:
        """Be `rank` among groups without peers, and protect what is its.

        RebuildFailed where it is a member of other kinds of groups; what the script raises goes on.
        """
        try:
            self._become(rank)
        except OtherGroups as error:
            raise RebuildFailed(str(error)) from error

    def _become(self, rank: int) -> None:
        if self._place is None:
            return
        self._wired.groups.rehearse(LoopbackBackend(), rank)
        self._wired.give_rank(rank)
        given = {name: thing for name, thing in self._place(rank).items() if not follows_rank(thing)}
        objects = {**self._objects, **given}
        self._wired.track(objects)
        self._protection.hold(objects)
