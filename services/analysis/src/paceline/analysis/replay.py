"""Samples in, episodes out: what detector and localizer do with a job, over samples that were recorded.

The same detection, the same judge and the same rules of what replaces a verdict as live; there is one reader
of all shards here, and a signal is judged at once. Time is what the caller says it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from paceline.analysis.builder import build_evidence
from paceline.analysis.detection import Decision, DecisionKind, DetectionPolicy, Gate, JobBlock, Reason
from paceline.analysis.episodes import Episode, EpisodePolicy, after_progress, decide
from paceline.analysis.evidence import JobEvidence
from paceline.analysis.health_bound import fresh_health
from paceline.analysis.judge import Judgement, explain
from paceline.analysis.order_memory import JoinedOrders
from paceline.analysis.policy import JudgePolicy
from paceline.contracts.batch import Batch, BatchKind
from paceline.contracts.ids import derived_id
from paceline.contracts.registry import (
    CommunicatorRecord,
    HealthEvent,
    HealthKind,
    JobRecord,
    NodeRecord,
)
from paceline.contracts.verdicts import Verdict

WRITER = "replay"
HEALTH_WAIT_NS = 3 * 10**9  # from a death that no signal reports to its verdict
DEAD_AGE_S = 0.01
SHARDS_MAX = 1024
COMMUNICATORS_MAX = 500_000
SPANS_MAX = 1000
HEALTH_KEPT_MAX = 65_536  # the evidence takes what says most of them
_SIGNALS = {
    DecisionKind.STALLED: BatchKind.STALLED,
    DecisionKind.SLOW: BatchKind.SLOW,
    DecisionKind.STATE: BatchKind.STATE,
}
_TRIGGERS = frozenset({HealthKind.PROCESS_EXIT, HealthKind.HEARTBEAT_LOST, HealthKind.PROCESS_FROZEN})
_BY_HEALTH = ("dead", "frozen", "lost_node", "hardware")
Registry = JobRecord | NodeRecord | CommunicatorRecord


@dataclass
class Span:
    """One episode with a verdict, first given at `opened_ns`. `ended_ns` None: it lasted to the end of the
    samples."""

    slow: bool
    opened_ns: int
    judgement: Judgement
    judged_ns: int
    first_stalled_s: float = 0.0  # how long it stood when it was first judged
    ended_ns: int | None = None
    progressed: bool = False  # it ended because what stood still or was slow goes on as usual

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict


@dataclass(frozen=True)
class Replayed:
    """What a replay has found, oldest first, and the judgement on the newest state."""

    spans: tuple[Span, ...]
    last: Judgement
    evidence: JobEvidence
    job: JobRecord | None
    gates: frozenset[Gate]  # why short limits did not apply at the end, of each shard


@dataclass
class _Shard:
    block: JobBlock
    stalled: Batch | None = None
    slow: Batch | None = None
    over: bool = False


@dataclass
class _Open:
    """An episode under way; `span` once it has a verdict."""

    episode: Episode
    shards: set[int] = field(default_factory=set)
    span: Span | None = None


class Replay:
    """One attempt of one job. Feed it in order of time; nothing here raises for odd content."""

    def __init__(self, job: str, attempt: str, policy: DetectionPolicy | None = None) -> None:
        self._job, self._attempt = job, attempt
        self._policy = policy or DetectionPolicy()
        self._judge_policy, self._episode_policy = JudgePolicy(), EpisodePolicy()
        self._record: JobRecord | None = None
        self._nodes: dict[tuple[str, str], NodeRecord] = {}
        self._communicators: dict[str, CommunicatorRecord] = {}
        self._health: dict[str, HealthEvent] = {}
        self._orders = JoinedOrders()
        self._shards: dict[int, _Shard] = {}
        self._open: dict[bool, _Open] = {}  # by whether it is slow
        self._spans: list[Span] = []
        self._death_due_ns: int | None = None
        self._senders: dict[str, set[str]] = {}  # node: senders that report for it
        self._silent: set[str] = set()
        self._now_ns = 0
        self.judged_ns = 0  # when a verdict was last accepted

    # ------------------------------------------------------------------ inputs

    def note(self, record: Registry | HealthEvent, sender: str = "") -> None:
        """A record of the registry or of health; `sender` tells several recorders of one node apart."""
        if isinstance(record, HealthEvent):
            self._note_health(record)
        elif isinstance(record, JobRecord):
            self._note_job(record)
        elif isinstance(record, NodeRecord):
            self._nodes[record.node, sender] = record
        elif record.communicator in self._communicators or len(self._communicators) < COMMUNICATORS_MAX:
            self._communicators[record.communicator] = record

    def take(self, batches: Iterable[tuple[str, Batch]]) -> None:
        """Samples in order of time, each with its sender: unique for each recorder."""
        of_shard: dict[int, list[Batch]] = {}
        for sender, batch in batches:
            self._senders.setdefault(batch.node, set()).add(sender)
            of_shard.setdefault(batch.shard, []).append(replace(batch, node=sender))
        for number, mine in of_shard.items():
            shard = self._shards.get(number)
            if shard is None:
                if len(self._shards) >= SHARDS_MAX:
                    continue
                shard = self._shards[number] = _Shard(JobBlock(self._policy))
                shard.block.world_size = self._record.world_size if self._record else 0
            shard.block.apply(mine)

    def tick(self, now_ns: int) -> None:
        """Advance to `now_ns` and judge."""
        self._now_ns = now_ns
        for number, shard in self._shards.items():
            if shard.over:
                continue
            for decision in shard.block.tick(WRITER, now_ns):
                self._act(number, shard, decision)
        if self._death_due_ns is not None and self._death_due_ns <= now_ns:
            self._death_due_ns = None
            self._judge_death()

    def finish(self) -> Replayed:
        """Nothing more comes: the episodes, and the judgement on what was seen last."""
        for each in list(self._open.values()):
            if each.span is not None:
                self._spans.append(each.span)
        self._open = {}
        state = [self._signal(number, shard, _STATE) for number, shard in self._shards.items()]
        evidence = self._evidence(state)
        gates = frozenset(shard.block.gate.gate for shard in self._shards.values())
        return Replayed(tuple(self._spans), self._explain(evidence), evidence, self._record, gates)

    # ------------------------------------------------------------------ decisions

    def _act(self, number: int, shard: _Shard, decision: Decision) -> None:
        if decision.kind is DecisionKind.CLEAR:
            self._clear(number, decision)
        elif decision.kind is DecisionKind.ENDED:
            shard.over = True
        elif decision.kind in (DecisionKind.HEARTBEAT_LOST, DecisionKind.HEARTBEAT_BACK):
            self._heartbeat(decision)
        elif decision.kind is DecisionKind.SCALING:
            shard.block.evidence(decision)  # closes the window
        else:
            self._judge_signal(number, shard, decision)

    def _judge_signal(self, number: int, shard: _Shard, decision: Decision) -> None:
        slow = decision.kind is DecisionKind.SLOW
        batch = self._signal(number, shard, decision)
        if slow:
            shard.slow = batch
        else:
            shard.stalled = batch
        if decision.kind is DecisionKind.STATE:
            if False in self._open:
                self._judge(False)
            return
        for other, each in self._shards.items():
            if other != number:
                each.block.ask()
        if slow and False in self._open:
            return  # while the job stands still, slow rounds are old news
        name = derived_id("epi", self._job, self._attempt, slow, decision.communicator, decision.round)
        mine = self._open.setdefault(slow, _Open(Episode(name, slow, 0.0)))
        mine.shards.add(number)
        self._judge(slow)

    def _judge(self, slow: bool) -> None:
        parts = [batch for each in self._shards.values() for batch in (each.slow, each.stalled)]
        mine = [batch for batch in parts if batch is not None and (slow or batch.kind is not BatchKind.SLOW)]
        span = self._open[slow].span
        stalled_unix_s = self._now_ns / 1e9 if span is None else span.opened_ns / 1e9 - span.first_stalled_s
        judgement = self._explain(self._evidence(mine, stalled_unix_s))
        if slow and not judgement.verdict.verdict_class.is_slow:
            return
        self._offer(self._open[slow], judgement, slow)

    def _explain(self, evidence: JobEvidence) -> Judgement:
        """As live; and where processes died, whether they disagreed about the round they died in: what a
        dead process holds does not grow older, however long its peers were to wait."""
        judgement = explain(evidence, self._judge_policy)
        if judgement.stage != "dead":
            return judgement
        behind = explain(evidence, replace(self._judge_policy, stall_age_s=DEAD_AGE_S))
        return behind if behind.stage == "mismatch_behind_death" else judgement

    def _offer(self, mine: _Open, judgement: Judgement, slow: bool) -> None:
        waited_s = mine.episode.waited_s(self._now_ns, WRITER)
        if not decide(mine.episode, judgement, waited_s, self._episode_policy).sends:
            return
        mine.episode.revision += 1
        mine.episode.verdict = judgement.verdict
        if mine.span is None:
            mine.span = Span(slow, self._now_ns, judgement, self._now_ns, judgement.verdict.stalled_s)
        mine.span.judgement, mine.span.judged_ns = judgement, self._now_ns
        self.judged_ns = self._now_ns

    def _judge_death(self) -> None:
        """A death that no signal has reported in time."""
        if False in self._open:
            return
        judgement = self._explain(self._evidence([]))
        if judgement.stage not in _BY_HEALTH:
            return
        name = derived_id("epi", self._job, self._attempt, "death", self._now_ns)
        mine = self._open[False] = _Open(Episode(name, False, 0.0))
        self._offer(mine, judgement, False)

    def _clear(self, number: int, decision: Decision) -> None:
        mine = self._open.get(decision.slow)
        if mine is None:
            return
        mine.shards.discard(number)
        if mine.shards:
            return
        del self._open[decision.slow]
        for shard in self._shards.values():
            shard.stalled = shard.slow = None
        if mine.span is None or len(self._spans) >= SPANS_MAX:
            return
        mine.span.ended_ns = self._now_ns
        mine.span.progressed = decision.reason is Reason.PROGRESS
        if mine.span.progressed:
            verdict = after_progress(mine.span.verdict)
            mine.span.judgement = replace(mine.span.judgement, verdict=verdict)
        self._spans.append(mine.span)

    # ------------------------------------------------------------------ memory

    def _note_job(self, record: JobRecord) -> None:
        self._record = record
        for number, shard in self._shards.items():
            shard.block.world_size = record.world_size
            if record.state.is_orderly_end and not shard.over:
                for decision in shard.block.end(Reason.JOB_RECORD_ENDED):
                    self._act(number, shard, decision)

    def _note_health(self, event: HealthEvent) -> None:
        if event.id in self._health or len(self._health) >= HEALTH_KEPT_MAX:
            return
        self._health[event.id] = event
        told = event.kind is HealthKind.PROCESS_EXIT and event.exit_code == 0
        if event.kind in _TRIGGERS and not told and self._death_due_ns is None:
            self._death_due_ns = self._now_ns + HEALTH_WAIT_NS

    def _heartbeat(self, decision: Decision) -> None:
        """Of several recorders on one node all have to be silent before the node is."""
        lost = decision.kind is DecisionKind.HEARTBEAT_LOST
        if lost:
            self._silent.add(decision.node)
        else:
            self._silent.discard(decision.node)
        node = next((name for name, all_of in self._senders.items() if decision.node in all_of), "")
        if lost and not self._senders.get(node, set()) <= self._silent:
            return
        kind = HealthKind.HEARTBEAT_LOST if lost else HealthKind.HEARTBEAT_BACK
        name = derived_id("health", kind.value, self._job, self._attempt, node, decision.node_seq)
        message = "its recording stops while others go on" if lost else "it records again"
        self._note_health(
            HealthEvent(
                name, kind, node, self._job, self._attempt, None, None, self._now_ns / 1e9, message=message
            )
        )

    def _signal(self, number: int, shard: _Shard, decision: Decision) -> Batch:
        rows, _ = shard.block.evidence(decision)
        kind = _SIGNALS[decision.kind]
        return Batch(
            kind, self._job, self._attempt, WRITER, number, number + 1, 1, self._now_ns, self._now_ns, rows
        )

    def _evidence(self, batches: Sequence[Batch], stalled_unix_s: float | None = None) -> JobEvidence:
        health: Iterable[HealthEvent] = self._health.values()
        if stalled_unix_s is not None:
            health = fresh_health(health, stalled_unix_s)
        return build_evidence(
            batches,
            self._record,
            self._merged_nodes(),
            self._communicators.values(),
            health,
            job_id=self._job,
            attempt=self._attempt,
            orders=self._orders,
        )

    def _merged_nodes(self) -> list[NodeRecord]:
        """One record for each node, whoever recorded its ranks."""
        merged: dict[str, NodeRecord] = {}
        for (node, _), record in self._nodes.items():
            known = merged.get(node)
            if known is not None:
                ranks = {each.rank: each for each in (*known.ranks, *record.ranks)}
                record = replace(record, ranks=tuple(ranks[rank] for rank in sorted(ranks)))
            merged[node] = record
        return list(merged.values())


_STATE = Decision(DecisionKind.STATE, Reason.NONE)
