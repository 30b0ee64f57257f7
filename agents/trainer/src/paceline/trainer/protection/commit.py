"""Which step is committed: every rank's copy of it is sealed where it has to be. Pure.

A minimum that goes up a tree of ranks and comes down again; it depends on no collective of the training
and costs it none.
"""

from collections.abc import Sequence

from paceline.trainer.protection import ring


class CommitTracker:
    """One rank's view. Each method returns what there is to tell, or None when nothing is new."""

    def __init__(self, ranks: Sequence[int], rank: int, start: int) -> None:
        self.parent = ring.parent(ranks, rank)
        self.children = ring.children(ranks, rank)
        self.committed = start
        self._own = start
        self._below = dict.fromkeys(self.children, start)
        self._told_up = start

    @property
    def subtree(self) -> int:
        """The minimum that the parent was told last."""
        return self._told_up

    def acknowledge(self, step: int) -> int | None:
        """This rank's copy of `step` is sealed; the new minimum of the subtree, for the parent."""
        self._own = max(self._own, step)
        return self._rise()

    def from_child(self, rank: int, step: int) -> int | None:
        """As `acknowledge`, for the subtree of a child. A stranger or an older step changes nothing."""
        if rank in self._below:
            self._below[rank] = max(self._below[rank], step)
        return self._rise()

    def commit(self, step: int) -> int | None:
        """The parent says that `step` is committed; what to tell the children."""
        if step <= self.committed:
            return None
        self.committed = step
        return step

    def _rise(self) -> int | None:
        lowest = min([self._own, *self._below.values()])
        if lowest <= self._told_up:
            return None
        self._told_up = lowest
        return lowest
