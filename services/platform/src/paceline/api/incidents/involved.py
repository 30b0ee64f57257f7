"""The communicators that a verdict touches, out of the tens of thousands that a large job has.

No list of ranks is expanded: what a communicator costs follows from its text and from the at most
VICTIMS_MAX victims, and the database is asked in parts, between which other requests are served: with
the 18,873 communicators of 100,000 ranks the event loop is held for 6 to 7 ms at a time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.incidents.schemas import CommunicatorInvolved
from paceline.contracts.ids import rank_spans
from paceline.contracts.verdicts import Verdict
from paceline.store.rank_states import root_ranks
from paceline.store.repositories.jobs import CommunicatorRow, JobRepository

INVOLVED_MAX = 64
PART_COUNT = 1000  # rows read and judged at a time
READ_MAX = 100_000  # rows


async def load_involved(
    session: AsyncSession, job: str, attempt: str, verdict: Verdict
) -> list[CommunicatorInvolved]:
    """The root communicator first, then those with a root or at least two victims as members."""
    jobs = JobRepository(session)
    found: list[CommunicatorInvolved] = []
    after = ""
    for _ in range(READ_MAX // PART_COUNT):
        rows = await jobs.communicator_rows(job, attempt, after, PART_COUNT)
        found = select_involved(verdict, rows, found)
        if len(rows) < PART_COUNT:
            break
        after = rows[-1].communicator
    return found


def select_involved(
    verdict: Verdict, rows: Iterable[CommunicatorRow], found: Iterable[CommunicatorInvolved] = ()
) -> list[CommunicatorInvolved]:
    """The first INVOLVED_MAX of `found` and of those in `rows` that the verdict touches."""
    victims = sorted(verdict.victims)
    roots = sorted(
        {rank for root in verdict.roots for rank in root_ranks(root.rank, root.peer_rank, root.ranks)}
    )
    root_id = "" if verdict.operation is None else verdict.operation.communicator
    touched = list(found)
    for row in rows:
        waiting = count_members(row.ranks, victims)
        is_root = row.communicator == root_id
        if is_root or (not row.closed and waiting and (waiting > 1 or count_members(row.ranks, roots))):
            touched.append(_involved(row, is_root, waiting))
    touched.sort(key=lambda item: (not item.is_root, -item.victims_count, item.name))
    return touched[:INVOLVED_MAX]


def count_members(text: str, ranks: Sequence[int]) -> int:
    """How many of `ranks`, ascending, are in a `format_ranks` text."""
    count = 0
    for span in rank_spans(text):
        low, high = bisect_left(ranks, span[0]), bisect_right(ranks, span[-1])
        count += high - low if span.step == 1 else sum(rank in span for rank in ranks[low:high])
    return count


def _involved(row: CommunicatorRow, is_root: bool, victims_count: int) -> CommunicatorInvolved:
    return CommunicatorInvolved(
        communicator=row.communicator,
        name=row.name,
        kind=row.kind,
        backend=row.backend,
        size=row.size,
        ranks=row.ranks,
        is_root=is_root,
        victims_count=victims_count,
    )
