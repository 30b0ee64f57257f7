"""The agents of the job: for each second the records that they would publish, exactly."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.agent.batches import CHUNK_BYTES_MAX, chunk_rows, split_shards
from paceline.agent.registry import shards_for
from paceline.contracts.batch import Batch, BatchKind, RowKind, Rows, encode_batch
from paceline.contracts.events import SOURCE_PREFIX, EventType
from paceline.contracts.ids import derived_id
from paceline.contracts.registry import (
    CommunicatorRecord,
    HealthEvent,
    JobRecord,
    JobState,
    NodeRecord,
)
from paceline.contracts.topics import FRAMES, HEALTH, JOBS
from paceline.fleet.engine import Engine
from paceline.fleet.faults import Conditions, Fault
from paceline.fleet.history import Ints
from paceline.fleet.layout import Topology
from paceline.fleet.profiles import Profile
from paceline.fleet.program import Program
from paceline.fleet.reading import RECENT_ROUNDS_MAX, Reader
from paceline.fleet.registry import (
    communicator_records,
    draw_pids,
    health_events,
    job_record,
    node_records,
)
from paceline.fleet.truth import Truth, judge_truth

Event = JobRecord | NodeRecord | CommunicatorRecord | HealthEvent
START_UNIX_S = 1_760_000_000.0
SEQ_MARGIN = 16  # as the agent's: a restarted agent counts on from above


@dataclass(frozen=True)
class FleetRecord:
    """One Kafka record. `content` is what `value` encodes, so that nobody has to decode it in memory."""

    topic: str
    key: str
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    time_s: float  # seconds of the job at which it reaches Kafka
    content: Batch | Event


class FleetJob:
    """A simulated job with its agents. Call `records(t)` (or `batches` and `events`) for t = 0, 1, 2 ...

    Seconds may not go back. The same arguments and the same calls give the same bytes. Without
    `full_frames`, or with fewer `recent_rounds_max`, suspicious nodes say less than real ones: a hang
    of 98,304 ranks is 6 million round rows a second as the agents are.
    """

    def __init__(
        self,
        topology: Topology,
        profile: Profile,
        program: Program | None = None,
        conditions: Conditions | None = None,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        *,
        job: str = "",
        attempt: str = "a1",
        shards: int | None = None,
        start_unix_s: float = START_UNIX_S,
        full_frames: bool = True,
        recent_rounds_max: int = RECENT_ROUNDS_MAX,
    ) -> None:
        self.topology, self.profile = topology, profile
        self.conditions = conditions or Conditions()
        self.job = job or f"sim-{topology.ranks}-{seed}"
        self.attempt = attempt
        self.shards = shards if shards is not None else shards_for(topology.ranks)
        self.start_unix_s = start_unix_s
        program = program or Program()
        self.engine = Engine(topology, profile, program, self.conditions, tuple(faults), seed)
        self.pids, self.pid_starts = draw_pids(topology, seed)
        self.lost = 0  # samples that the network or a dead agent swallowed
        self._random = np.random.default_rng([seed, 53])
        self._reader = Reader(
            self.engine, self._random, self.pids, self.pid_starts, full_frames, recent_rounds_max
        )
        self._names = [topology.node_name(node) for node in range(topology.nodes)]
        self._boot_s = self._random.uniform(1e4, 1e7, topology.nodes)
        self._skew_s = self._random.normal(0.0, 0.02, topology.nodes)
        self._seq = np.full(topology.nodes, int(start_unix_s) * SEQ_MARGIN, np.int64)
        self._unobserved = frozenset(self.conditions.unobserved)
        self._late: list[tuple[float, list[Batch]]] = []
        self._second = -1
        self._announced = False

    # ------------------------------------------------------------------ what is true

    def truth(self) -> Truth:
        """What was injected and has taken effect up to the last second."""
        return judge_truth(self.engine.fired, self.topology, self.profile)

    def waiting(self) -> Ints:
        """Ranks that wait for ever for others, after the last second: everybody but those at fault."""
        return self._reader.waiting(self.truth().root_ranks)

    # ------------------------------------------------------------------ what is published

    def tables(self, second: int) -> dict[RowKind, Rows]:
        """Rows of all observed ranks at `second`, by rank: what all agents together would send."""
        if second <= self._second:
            raise ValueError(f"second is {second}, expected more than {self._second}")
        self._second = second
        tables = self._reader.read(second)
        if self._unobserved:
            gone = np.array(sorted(self._unobserved))
            hidden = {kind: np.isin(_ranks_of(kind, rows), gone) for kind, rows in tables.items()}
            tables = {kind: rows[~hidden[kind]] for kind, rows in tables.items()}
        return tables

    def batches(self, second: int) -> list[tuple[float, Batch]]:
        """(arrival, batch) of every agent at `second`, in order of arrival."""
        tables = self.tables(second)
        nodes = self.topology.nodes
        bounds = {
            kind: np.searchsorted(
                self.topology.node_of[_ranks_of(kind, rows)], np.arange(nodes + 1, dtype=np.int64)
            ).tolist()
            for kind, rows in tables.items()
        }
        self._seq += 1
        arrived: list[tuple[float, Batch]] = []
        lost, late = self._losses(second)
        parts = [(kind, table, bounds[kind]) for kind, table in tables.items() if len(table)]
        for node in range(nodes):
            rows = {
                kind: table[bound[node] : bound[node + 1]]
                for kind, table, bound in parts
                if bound[node] < bound[node + 1]
            }
            if RowKind.PROCESS not in rows:
                continue
            if lost[node]:
                self.lost += 1
                continue
            at_s = float(self._reader.sampled_s[node])
            made = list(self._node_batches(node, at_s, rows))
            delay_s = self.conditions.late_s if late[node] else 0.0
            if delay_s:
                self._late.append((at_s + delay_s, made))
            else:
                arrived.extend((at_s, batch) for batch in made)
        due = [entry for entry in self._late if entry[0] < second + 1]
        self._late = [entry for entry in self._late if entry[0] >= second + 1]
        arrived.extend((at_s, batch) for at_s, made in due for batch in made)
        arrived.sort(key=lambda entry: entry[0])
        return arrived

    def _losses(self, second: int) -> tuple[Ints, Ints]:
        draws = self._random.random((2, self.topology.nodes))
        lost = (draws[0] < self.conditions.drop).astype(np.int64)
        for node, from_s in self.conditions.dead_agents:
            if second >= from_s:
                lost[node] = 1
        return lost, (draws[1] < self.conditions.late).astype(np.int64)

    def _node_batches(self, node: int, at_s: float, rows: dict[RowKind, Rows]) -> Iterator[Batch]:
        """What one agent sends: by shard, in chunks (`paceline.agent.batches`)."""
        flags = self._reader.flags(node)
        parts = [rows] if self.shards == 1 else split_shards(rows, self.shards)
        for shard, part in enumerate(parts):
            part = {kind: table for kind, table in part.items() if len(table)}
            chunks = [part] if not flags else chunk_rows(part, CHUNK_BYTES_MAX)
            for index, chunk in enumerate(chunks):
                yield Batch(
                    kind=BatchKind.FRAMES,
                    job=self.job,
                    attempt=self.attempt,
                    node=self._names[node],
                    shard=shard,
                    shards=self.shards,
                    seq=int(self._seq[node]),
                    sampled_ns=int((self._boot_s[node] + at_s) * 1e9),
                    sampled_unix_ns=int((self.start_unix_s + at_s + self._skew_s[node]) * 1e9),
                    rows=chunk,
                    flags=flags,
                    chunk=index,
                    chunks=len(chunks),
                )

    def events(self, second: int) -> list[tuple[float, str, Event]]:
        """(time, key, event) of the registry and of health at `second`; after `batches` of that second."""
        found: list[tuple[float, str, Event]] = []
        job, attempt = self.job, self.attempt
        if second == 0:
            state = JobState.STARTING
            first = job_record(job, attempt, self.topology, self.shards, self.start_unix_s, state)
            found.append((0.0, job, first))
            for record in node_records(
                job, attempt, self.topology, self.pids, self.pid_starts, self._unobserved
            ):
                found.append((0.0, f"{job}:{record.node}", record))
            for comm in communicator_records(job, attempt, self.topology, self.shards, self.profile.backend):
                found.append((0.0, f"{job}:{comm.communicator}", comm))
        if not self._announced and self._reader.has_completed:
            self._announced = True
            state = JobState.RUNNING
            running = job_record(job, attempt, self.topology, self.shards, self.start_unix_s, state)
            found.append((float(second), job, running))
        dead_nodes = {node for node, from_s in self.conditions.dead_agents if second >= from_s}
        for event in health_events(
            job, attempt, self.engine, self.pids, second - 1, second, self.start_unix_s
        ):
            node = int(self.topology.node_of[event.rank or 0])
            if node not in dead_nodes and event.rank not in self._unobserved:
                found.append((event.at_unix_s - self.start_unix_s, job, event))
        return found

    def records(self, second: int) -> list[FleetRecord]:
        """Everything that reaches Kafka in `second`, in order; registry records first."""
        frames = [
            FleetRecord(FRAMES.name, f"{self.job}:{batch.shard}", encode_batch(batch), (), at_s, batch)
            for at_s, batch in self.batches(second)
        ]
        return [*(self._event_record(*entry) for entry in self.events(second)), *frames]

    def last_records(self, second: int) -> list[FleetRecord]:
        """The end of the job, as if its processes had been told to stop."""
        record = job_record(
            self.job, self.attempt, self.topology, self.shards, self.start_unix_s, JobState.CANCELLED
        )
        ended = replace(record, ended_unix_s=self.start_unix_s + second, end_reason="the simulation is over")
        return [self._event_record(float(second), self.job, ended)]

    def _event_record(self, at_s: float, key: str, event: Event) -> FleetRecord:
        from paceline.contracts.schemas import dump_json
        from paceline.runtime.cloud_events import encode_event  # the agent's own encoding

        kind = {
            JobRecord: EventType.JOB_RECORD,
            NodeRecord: EventType.NODE_RECORD,
            CommunicatorRecord: EventType.COMMUNICATOR_RECORD,
            HealthEvent: EventType.HEALTH,
        }[type(event)]
        is_health = isinstance(event, HealthEvent)
        headers, value = encode_event(
            event,
            event_type=kind.value,
            source=f"{SOURCE_PREFIX}agent-simulated",
            event_id=event.id
            if isinstance(event, HealthEvent)
            else derived_id("rec", key, self.attempt, dump_json(event)),
            unix_s=self.start_unix_s + at_s,
        )
        topic = HEALTH if is_health else JOBS
        return FleetRecord(topic.name, key, value, tuple(headers), at_s, event)


def _ranks_of(kind: RowKind, rows: Rows) -> Ints:
    """Global rank of each row."""
    if kind is RowKind.FRAME:
        from paceline.contracts.dtypes import FRAME_DTYPE

        ranks: Ints = rows.view(FRAME_DTYPE)["global_rank"].astype(np.int64)
        return ranks
    found: Ints = rows["rank"].astype(np.int64)
    return found
