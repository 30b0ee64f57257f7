"""Which jobs live on this node: the book, and the registry records it makes.

The record of a job (key `job`) is written by every agent when the job appears; its later states
only by the agent that has rank 0, so that agents do not overwrite each other.
"""

from dataclasses import dataclass, field, replace

from paceline.agent.exits import Ended
from paceline.agent.ranks import has_rank
from paceline.contracts import ids
from paceline.contracts.agent_socket import CommunicatorOpened, Hello
from paceline.contracts.registry import (
    CommunicatorRecord,
    CoordinateSource,
    JobRecord,
    JobState,
    NodeRecord,
    OrderPart,
    RankRecord,
)

RANKS_PER_SHARD = 131_072  # what one detector keeps up with; each shard costs every node one more record
SHARDS_MAX = 64
COMMUNICATORS_PER_JOB_MAX = 4096

JobKey = tuple[str, str]  # job, attempt


def shards_for(world_size: int) -> int:
    """Shards of a job, the same on every node because it only looks at the size."""
    return min(max(-(-world_size // RANKS_PER_SHARD), 1), SHARDS_MAX)


@dataclass
class LocalJob:
    """One attempt of a job as this node knows it."""

    key: JobKey
    uid: int
    first: Hello
    registered_ns: int
    started_unix_s: float
    state: JobState = JobState.STARTING
    end_reason: str = ""
    ended_unix_s: float | None = None
    ended_ns: int | None = None
    hellos: dict[int, Hello] = field(default_factory=dict)  # by rank
    pids: dict[int, int] = field(default_factory=dict)  # by rank, as this node sees them
    communicators: dict[str, CommunicatorRecord] = field(default_factory=dict)
    orders: dict[str, OrderPart] = field(default_factory=dict)  # of communicators on several nodes
    members: dict[str, set[int]] = field(default_factory=dict)  # local ranks that have it open
    ended: dict[int, Ended] = field(default_factory=dict)  # by rank
    cancelled: bool = False
    superseded: bool = False
    seq: dict[int, int] = field(default_factory=dict)  # by shard

    @property
    def job(self) -> str:
        return self.key[0]

    @property
    def attempt(self) -> str:
        return self.key[1]

    @property
    def world_size(self) -> int:
        return self.first.world_size

    @property
    def shards(self) -> int:
        return shards_for(self.world_size)

    @property
    def is_provisional(self) -> bool:
        """Whether no local rank has its final attempt yet."""
        return all(hello.attempt_source == "provisional" for hello in self.hellos.values())

    @property
    def is_authority(self) -> bool:
        """Whether this node writes the later states of the job's record."""
        return 0 in self.hellos


def job_record(job: LocalJob) -> JobRecord:
    """What holds for the whole attempt, from the hello of the lowest local rank."""
    hello = job.hellos[min(job.hellos)] if job.hellos else job.first
    return JobRecord(
        job=job.job,
        attempt=job.attempt,
        cluster=hello.cluster,
        tenant=hello.tenant,
        user=hello.user,
        name=hello.name,
        world_size=job.world_size,
        shards=job.shards,
        state=job.state,
        id_source=hello.job_source,
        attempt_source=hello.attempt_source,
        started_unix_s=job.started_unix_s,
        ended_unix_s=job.ended_unix_s,
        end_reason=job.end_reason,
        versions=dict(sorted(hello.versions.items())),
        coordinate_source=parse_source(hello.coordinate_source),
    )


def parse_source(text: str) -> CoordinateSource:
    """The source by its name, NONE for a word we do not know."""
    try:
        return CoordinateSource(text)
    except ValueError:
        return CoordinateSource.NONE


def node_record(job: LocalJob, node: str, agent: str) -> NodeRecord:
    """The local ranks of an attempt."""
    ranks = tuple(
        RankRecord(
            rank=rank,
            local_rank=hello.local_rank,
            pid=job.pids[rank],
            pid_start=hello.pid_start,
            gpu=hello.gpu,
            coordinates=dict(sorted(hello.coordinates.items())),
        )
        for rank, hello in sorted(job.hellos.items())
    )
    orders = tuple(part for _, part in sorted(job.orders.items()))
    return NodeRecord(job.job, job.attempt, node, agent, ranks, job.ended_unix_s is not None, orders)


def open_communicator(job: LocalJob, rank: int, message: CommunicatorOpened) -> str | None:
    """Enter a communicator into the book; the reason where it cannot be."""
    name = message.communicator
    known = job.communicators.get(name)
    record = CommunicatorRecord(
        job=job.job,
        attempt=job.attempt,
        communicator=name,
        name=message.name,
        ranks=message.ranks,
        instance=message.instance,
        shard=ids.shard_of(ids.parse_communicator(name), job.shards),
        backend=message.backend,
        kind=message.kind,
    )
    if known is not None and (known.ranks, known.instance) != (record.ranks, record.instance):
        return f"communicator {name} has ranks {known.ranks} already, rank {rank} says {record.ranks[:80]}"
    spans = ids.rank_spans(message.ranks)  # distinct already, so none below the world's size is too many
    if not has_rank(spans, rank) or max(span[-1] for span in spans) >= job.world_size:
        return f"communicator {name} of rank {rank} has ranks {record.ranks[:80]} of {job.world_size}"
    if known is None and len(job.communicators) >= COMMUNICATORS_PER_JOB_MAX:
        return f"job {job.job!r} has {COMMUNICATORS_PER_JOB_MAX} communicators already, the bound"
    if known is None or known.closed or (record.kind and not known.kind):
        if known is not None:
            record = replace(record, ring=known.ring, tree=known.tree, order_sources=known.order_sources)
        job.communicators[name] = record
    job.members.setdefault(name, set()).add(rank)
    return None


def move_communicators(old: LocalJob, new: LocalJob, rank: int) -> None:
    """What `rank` had opened under the old name of its job is open under the new one."""
    for name, members in old.members.items():
        if rank not in members:
            continue
        members.discard(rank)
        record = old.communicators[name]
        shard = ids.shard_of(ids.parse_communicator(name), new.shards)
        moved = replace(record, job=new.job, attempt=new.attempt, shard=shard, closed=False)
        new.communicators.setdefault(name, moved)
        new.members.setdefault(name, set()).add(rank)


def close_communicator(job: LocalJob, rank: int, name: str) -> bool:
    """Take note that `rank` closed `name`; whether the communicator is known."""
    members = job.members.get(name)
    if members is None:
        return False
    members.discard(rank)
    record = job.communicators[name]
    # Other nodes may still have it open; the node of its first rank decides for all.
    if not members and first_rank(record) in job.hellos:
        job.communicators[name] = replace(record, closed=True)
    return True


def first_rank(record: CommunicatorRecord) -> int:
    """The first rank of a communicator; the agent of its node repeats and closes the record."""
    return ids.rank_spans(record.ranks)[0].start
