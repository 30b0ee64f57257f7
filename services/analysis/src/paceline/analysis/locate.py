"""Where inside one operation progress stops: a rank, a link, or the smallest set that contains it.

The wait-for principle holds inside an operation as well. A healthy rank that stands still waits on a link:
for data, or for its own data to be taken. The rank that waits for nobody, while somebody waits for it, is
stuck. Where there is none, a link whose two ends wait for each other is broken, and so is one whose
receiver waits for slices that were sent. All of this needs no common start of the counts and holds for
rings, trees and any mixture.

Without waits only counts are left, and SendCount counts slices that were delivered. In a ring the least
received slices stand at one link and rise on both sides of it (papers.md 1.4 rule 3). Where more was
delivered than its receiver took, that rank is stuck; where all that was delivered was taken and the sender
went on receiving, the link is broken. In a tree slices are compared after division by the number of links
of each rank, so that a leaf is not taken for a laggard. A round with a root leaves a lasting step in the
counts: a shape that is not the one of a stall is not used.
"""

from dataclasses import dataclass

import numpy as np

from paceline.analysis.evidence import Ints, Mask
from paceline.analysis.transfers import UNSEEN, Transfers

_SHAPE_VALUES_MIN = 3  # a single step in the counts may be older than this round


@dataclass(frozen=True)
class Place:
    """`ranks` of the communicator; with `links` the pairs (sender, receiver) that are broken."""

    how: str  # named reason
    ranks: tuple[int, ...]
    links: tuple[tuple[int, int], ...] = ()
    unseen: bool = False  # the place is a rank that nobody reported
    among: bool = False  # `ranks` are the smallest set that contains it


def by_waits(links: Transfers, inside: Mask, needed: Mask) -> Place | None:
    """From who waits on which link; None where waits are not seen or do not decide.

    `inside`: members seen in the operation; who has left it is no suspect, whatever it does.
    `needed`: these, and the members that nobody reported.
    """
    seen = (links.sender_waits != UNSEEN) | (links.receiver_waits != UNSEEN)
    if not seen.any():
        return None
    waits = np.zeros(len(inside), np.bool_)
    waits[links.tail[links.sender_waits == 1]] = True
    waits[links.head[links.receiver_waits == 1]] = True
    if not waits.any():
        return None
    judged = np.zeros(len(inside), np.bool_)
    judged[links.tail[links.sender_waits != UNSEEN]] = True
    judged[links.head[links.receiver_waits != UNSEEN]] = True
    receiving = links.receiver_waits == 1
    # Who has nothing left to do is idle as well: a stuck rank owes something to somebody.
    owes = np.zeros(len(inside), np.bool_)
    owes[links.tail[receiving & (links.in_flight <= 0)]] = True
    owes[links.head[(links.sender_waits == 1) | (links.in_flight > 0)]] = True
    stuck = np.flatnonzero(inside & judged & ~waits & owes)
    if len(stuck):
        return Place("waits_for_nobody", tuple(int(rank) for rank in stuck))
    broken, how = _broken(links, receiving)
    if len(broken):
        pairs = tuple((int(links.tail[at]), int(links.head[at])) for at in broken)
        return Place(how, tuple(sorted({rank for pair in pairs for rank in pair})), pairs)
    dark = np.flatnonzero(needed & ~judged)
    if how or len(dark) != 1 or not _has_moved(links):
        return None
    # All that we see wait, none of them for a broken link: their waits end at the one we cannot see.
    return Place("waits_end_at_unseen", (int(dark[0]),), unseen=True)


def _has_moved(links: Transfers) -> bool:
    """Whether somebody got further than somebody else; who waits for one member has used its buffers.

    Where all links stand alike nobody began, and it is not one member that holds the others.
    """
    mine = (links.sender_waits != UNSEEN) | (links.receiver_waits != UNSEEN)
    counts = [each[mine & (each >= 0)] for each in (links.sent, links.received)]
    return any(len(np.unique(each)) > 1 for each in counts)


def _broken(links: Transfers, receiving: Mask) -> tuple[Ints, str]:
    """Links that carry nothing although both ends do their part, and the reason; a reason without links
    where there are some and it cannot be said which.

    A receiver that is blocked in sending to somebody else as well is held up further down. Towards the
    sender itself that is no sign: in a tree both directions are carried side by side, and what cannot come
    down keeps the root, and with it everything that goes up. Neighbouring links do not break together: a
    source that says so takes something else for a wait.
    """
    both = receiving & (links.sender_waits == 1)
    blocked, doubt = _blocked_elsewhere(links), ""
    for mask, how in (
        (both, "ends_wait_for_each_other"),
        (receiving & (links.in_flight > 0) & ~both, "sent_and_not_received"),
    ):
        at = np.flatnonzero(mask)
        # One cable may be a link of both trees, and broken in both directions.
        cables = np.unique(np.sort(np.stack([links.tail[at], links.head[at]]), axis=0), axis=1)
        if len(np.unique(cables)) < cables.size:
            doubt = "neighbours_wait" if bool((~blocked[at]).any()) else doubt
            continue
        at = at[~blocked[at]]
        _, first = np.unique(np.stack([links.tail[at], links.head[at]]), axis=1, return_index=True)
        if len(at):
            return at[np.sort(first)], how
    return np.zeros(0, np.int64), doubt


def _blocked_elsewhere(links: Transfers) -> Mask:
    """Links whose receiver is blocked in sending to somebody who is not their sender."""
    waits = links.sender_waits == 1
    size = int(max(links.tail.max(initial=0), links.head.max(initial=0))) + 1
    out = np.bincount(links.tail[waits], minlength=size)
    keys, counts = np.unique(links.tail[waits] * size + links.head[waits], return_counts=True)
    if len(keys) == 0:
        return np.zeros(len(links), np.bool_)
    back = links.head * size + links.tail
    at = np.minimum(np.searchsorted(keys, back), len(keys) - 1)
    mask: Mask = out[links.head] > np.where(keys[at] == back, counts[at], 0)
    return mask


def ring_by_counts(links: Transfers) -> Place | None:
    """The link with the least received slices, where the counts have the shape of a stalled ring."""
    following = _circle(links)
    if following is None:
        return None
    received = links.received[following]
    known = np.flatnonzero(received >= 0)
    if len(known) < _SHAPE_VALUES_MIN or bool((links.in_flight < 0).any()):
        return None
    least = int(received[known].min())
    lowest = known[received[known] == least]
    first = _run_start(lowest, len(received))
    if first < 0 or len(lowest) > 2 or not _rises_and_falls(np.roll(received, -first)):
        return None
    at = following[(first + len(lowest) - 1) % len(received)]  # the last link of the run
    tail, head = int(links.tail[at]), int(links.head[at])
    if links.sent[at] < 0:
        return Place("least_received_of_unseen", (tail,), unseen=True)
    if int(links.in_flight[at]) > 0:
        return Place("takes_nothing", (head,))
    dark = _dark_before(links, following, (first + len(lowest) - 1) % len(received))
    if dark:
        return Place("least_received_behind_unseen", tuple(sorted({*dark, tail, head})), among=True)
    if len(lowest) == 2:
        return Place("keeps_what_it_received", (tail,))
    return Place("delivers_nothing", tuple(sorted((tail, head))), ((tail, head),))


def _dark_before(links: Transfers, following: Ints, place: int) -> list[int]:
    """Both ends of the links before `place` that no source sees, as of NVLink: it may be there."""
    ranks: list[int] = []
    for back in range(1, len(following)):
        at = following[place - back]
        if links.sent[at] >= 0 or links.received[at] >= 0:
            break
        ranks += [int(links.tail[at]), int(links.head[at])]
    return ranks


def tree_by_counts(slices: Ints, degree: Ints, inside: Mask) -> Place | None:
    """The rank with the least slices for its place in the tree; None where several are alike.

    `slices`: sent and received of each member, `degree`: links of each member, both directions. Every
    link of a tree carries the same number of slices, so slices / degree is the same for leaf, inner
    rank and root.
    """
    if bool((degree < 1).any()) or len(slices) < _SHAPE_VALUES_MIN:
        return None
    progress = slices / degree
    at = np.flatnonzero(progress == progress.min())
    if len(at) != 1 or len(np.unique(progress)) < _SHAPE_VALUES_MIN or not inside[at[0]]:
        return None
    return Place("least_for_its_role", (int(at[0]),))


def slices_by_role(links: Transfers, size: int) -> tuple[Ints, Ints]:
    """Slices and degree of each member for `tree_by_counts`, from the links that it reported."""
    slices, degree = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for end, counts in ((links.tail, links.sent), (links.head, links.received)):
        seen = counts >= 0
        np.add.at(slices, end[seen], counts[seen])
        np.add.at(degree, end[seen], 1)
    return slices, degree


def _circle(links: Transfers) -> Ints | None:
    """Positions of the links one after another round the ring; None where they are no single ring."""
    count = len(links)
    order = np.argsort(links.tail, kind="stable")
    tails = links.tail[order]
    if count < 2 or len(np.unique(tails)) != count or len(np.unique(links.head)) != count:
        return None
    where = np.minimum(np.searchsorted(tails, links.head), count - 1)
    if not bool((tails[where] == links.head).all()):
        return None
    following = order[where]
    result, at = [], 0
    for _ in range(count):
        result.append(at)
        at = int(following[at])
    return np.array(result, np.int64) if at == 0 and len(set(result)) == count else None


def _run_start(lowest: Ints, count: int) -> int:
    """First of the positions `lowest` where they follow one another round the ring, else -1."""
    if len(lowest) == 1:
        return int(lowest[0])
    if len(lowest) == 2:
        low, high = int(lowest[0]), int(lowest[1])
        if high - low == 1:
            return low
        if low == 0 and high == count - 1:
            return high
    return -1


def _rises_and_falls(values: Ints) -> bool:
    """One peak, and more than one step; unseen values are left out."""
    seen = values[values >= 0]
    steps = np.sign(np.diff(seen))
    steps = steps[steps != 0]
    turns = int(np.count_nonzero(np.diff(steps)))
    return len(np.unique(seen)) >= _SHAPE_VALUES_MIN and turns <= 1 and (len(steps) == 0 or steps[0] > 0)
