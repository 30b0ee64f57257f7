"""One job shard: takes samples and ticks, gives named decisions."""

import zlib
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from paceline.analysis.detection.arrays import MS, SECOND_NS, Ints, Rows, join_rows
from paceline.analysis.detection.decisions import Decision, DecisionKind
from paceline.analysis.detection.evidence import bound_rows, gather_extras
from paceline.analysis.detection.gates import (
    NO_GATE,
    GateView,
    host_wait_limits_ms,
    is_stepless_warm,
    judge_gate,
    moves_on,
)
from paceline.analysis.detection.intake import Sampled, take_members, take_processes, waves_of
from paceline.analysis.detection.iterations import IterationWatch
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.policy import DetectionPolicy
from paceline.analysis.detection.processes import GONE, Mark, Processes
from paceline.analysis.detection.reasons import Gate, Reason, Refusal
from paceline.analysis.detection.senders import (
    MISSED_MAX,
    Sender,
    join_rounds,
    only_kept,
    without_evidence,
)
from paceline.analysis.detection.slow import SlowWatch
from paceline.analysis.detection.stall import StallView, Times, judge_stalls, may_stall
from paceline.analysis.detection.suspicion import Suspicion
from paceline.analysis.detection.usual_wait import learn_usual_wait, longest_wait_ms
from paceline.contracts.batch import ROW_DTYPES, Batch, BatchFlag, RowKind
from paceline.contracts.batch_run import BatchRun
from paceline.contracts.codes import HostWait

QUIET_NS_MAX = 60 * SECOND_NS  # nobody has reported for so long: there is nothing new to publish
EVIDENCE_STALE_NS = 5 * SECOND_NS  # not longer than the floor of a stall
_SEEN_NS, _PERIOD_NS, _EXTRAS, _SILENT = map(attrgetter, ("seen_ns", "period_ns", "extras", "silent"))
TICK_STEP_NS_MAX = 2 * SECOND_NS  # a pause of the detector itself must not look like a silence


class JobBlock:
    """State of one (job, attempt, shard). Block time starts at one second, so that 0 means never."""

    def __init__(self, policy: DetectionPolicy) -> None:
        self.policy = policy
        self.now_ns = SECOND_NS
        self.first_ns = 0  # first sample
        self.tick_writer = ""
        self.tick_sampled_ns = 0
        self.last_gated_ns = 0
        self.last_held_ns = 0
        self.period_ns = 0  # of the slowest sender
        self.dead_since_ns = 0
        self.gone_since_ns = 0
        self.world_size = 0  # 0 = unknown
        self.stepless_warm = False
        self.stepless_beats = 0
        self.beat_looked_ns = 0
        self.usual_wait_ms = 0
        self.longest_wait_ms = 0
        self.asked_until_ns = 0
        self.state_published_ns = 0
        self.members = Members(policy.bounds.members_max, policy.bounds.communicators_max)
        self.processes = Processes(policy.stall.phase_limit_s, policy.stall.frozen_after_s)
        self.senders: dict[str, Sender] = {}
        self.suspicion = Suspicion()
        self.slow = SlowWatch(policy)
        self.iterations = IterationWatch()
        self.gate: GateView = NO_GATE
        self.refused: Counter[Refusal] = Counter()
        self._process_of: Ints = np.zeros(0, np.int64)
        self._process_of_key = (-1, -1)
        self._backs: list[str] = []  # senders heard again since the last tick

    # ------------------------------------------------------------------ samples

    def apply(self, batches: Sequence[Batch]) -> None:
        """Take records in log order. Rows of one sender are applied sample by sample."""
        taken: list[tuple[Sender, Batch]] = []
        rounds = join_rounds(batches)
        for batch, kept_only in zip(batches, only_kept(batches, rounds), strict=True):
            sender = self._sender(batch.node)
            if sender is not None and self._take(sender, batch, kept_only=kept_only):
                taken.append((sender, batch))
        for places in waves_of([sender for sender, _ in taken]):
            entries = [taken[at] for at in places]
            whole = len(entries) == len(batches)
            self._apply_rows(
                Sampled.of_entries(entries, RowKind.PROCESS),
                Sampled.of_entries(entries, RowKind.STATE),
                rounds if whole else join_rounds([batch for _, batch in entries]),
                [batch for _, batch in entries],
            )

    def apply_run(self, run: BatchRun) -> None:
        """The same for records that were read together: who sends nothing unusual is not looked at alone."""
        rounds, counts = run.table(RowKind.ROUND)
        kept = without_evidence(rounds, np.array(counts)) & (
            (run.heads["flags"] & BatchFlag.SUSPECT.value) == 0
        )
        usual, kept_only = (run.plain & kept).tolist(), kept.tolist()
        times = [run.heads[name].tolist() for name in ("seq", "sampled_ns", "sampled_unix_ns")]
        places: list[int] = []
        senders: list[Sender] = []
        unusual: dict[int, Batch] = {}
        gaps, known, now_ns = 0, self.senders, self.now_ns
        for at, (origin, is_usual, seq, sampled_ns, unix_ns) in enumerate(
            zip(run.origins, usual, *times, strict=True)
        ):
            sender = known.get(origin.node) or self._sender(origin.node)
            if sender is None:
                continue
            missed = sender.advance(seq, sampled_ns, unix_ns, now_ns) if is_usual else None
            if missed is None:
                batch = unusual[at] = run.batch(at)
                if not self._take(sender, batch, kept_only=kept_only[at]):
                    continue
            else:
                if missed:
                    gaps += 1
                if sender.silent:
                    self._note_back(sender)
                if sender.followed:
                    tables = run.rows(at, RowKind.ROUND), run.rows(at, RowKind.PROCESS)
                    self.iterations.take_rows(*tables, sampled_ns)
            places.append(at)
            senders.append(sender)
        if gaps:
            self.refused[Refusal.SEQUENCE_GAP] += gaps
        for wave in waves_of(senders):
            at_once = [senders[at] for at in wave]
            part = run if len(wave) == len(run) else run.take([places[at] for at in wave])
            self._apply_rows(
                Sampled.of_run(at_once, part, RowKind.PROCESS),
                Sampled.of_run(at_once, part, RowKind.STATE),
                rounds if part is run else part.table(RowKind.ROUND)[0],
                [unusual[places[at]] for at in wave if places[at] in unusual],
            )

    def _take(self, sender: Sender, batch: Batch, *, kept_only: bool) -> bool:
        """False for a record that is no news."""
        fresh, note = sender.judge(batch)
        if note is not None:
            self.refused[note] += 1
        if not fresh:
            return False
        self._note_back(sender)
        dropped = sender.take(batch, self.now_ns, self.policy.bounds.extra_rows_max, kept_only=kept_only)
        if dropped:
            self.refused[Refusal.EXTRA_ROWS_FULL] += dropped
        if sender.followed:
            self.iterations.take(batch)
        return True

    def _note_back(self, sender: Sender) -> None:
        if sender.silent:
            sender.silent = False
            self._backs.append(sender.node)

    def _sender(self, node: str) -> Sender | None:
        """None, and counted, where there are too many."""
        sender = self.senders.get(node)
        if sender is not None:
            return sender
        if len(self.senders) >= self.policy.bounds.nodes_max:
            self.refused[Refusal.NODES_FULL] += 1
            return None
        sender = self.senders[node] = Sender(node, followed=self.iterations.follows(node))
        return sender

    @property
    def _rank_limit(self) -> int:
        return min(self.world_size or self.policy.bounds.ranks_max, self.policy.bounds.ranks_max)

    def _apply_rows(
        self, processes: Sampled, states: Sampled, rounds: Rows, with_edges: Sequence[Batch]
    ) -> None:
        """At most one sample of each sender."""
        self.first_ns = self.first_ns or self.now_ns
        take_processes(self.processes, processes, self._rank_limit, self.now_ns, self.refused)
        sent = take_members(self.members, states, self._rank_limit, self.now_ns, self.refused)
        if len(rounds):
            sent = self._sent_positions(states.senders) if sent is None else sent
            self.slow.apply(rounds, self.members, self.now_ns, sent)
        if self.slow.hot:
            self.slow.apply_edges([rows for batch in with_edges if len(rows := batch.table(RowKind.EDGE))])

    def _sent_positions(self, senders: Sequence[Sender]) -> Ints:
        """Positions of the members in the order of the STATE rows of `senders`; empty where unknown."""
        generation = self.members.generation
        if any(sender.member_generation != generation for sender in senders):
            return np.zeros(0, np.int64)
        return np.concatenate([sender.member_positions for sender in senders])

    # ------------------------------------------------------------------ time

    def tick(self, writer: str, sampled_ns: int) -> list[Decision]:
        """One tick record of the log: advance time and judge."""
        step = sampled_ns - self.tick_sampled_ns if writer == self.tick_writer else 0
        self.tick_writer, self.tick_sampled_ns = writer, sampled_ns
        self.now_ns += min(max(step, 0), TICK_STEP_NS_MAX)
        decisions = self._judge_silence()
        view = self._judge_stalls()
        was_slow = self.slow.active
        learn = self.gate.lets_learn
        self.slow.watch_steps(self.senders, self.processes, self.members, self.now_ns, learn=learn)
        self.slow.judge(self.members, self.now_ns, learn=learn)
        self.refused.update(self.slow.take_refused())
        if self._has_ended():
            return [*decisions, *self._end(Reason.JOB_ENDED)]
        return [*decisions, *self._decide(view), *self._decide_slow(was_slow), *self._decide_scaling(learn)]

    def end(self, reason: Reason) -> list[Decision]:
        """The attempt is over for a reason outside the samples."""
        return self._end(reason)

    def ask(self) -> None:
        """Another shard suspects the job: show our state for the next seconds."""
        self.asked_until_ns = self.now_ns + 5 * SECOND_NS

    @property
    def quiet_ns(self) -> int:
        """How long nothing has been heard of any sender."""
        newest = max(map(_SEEN_NS, self.senders.values()), default=self.first_ns)
        return self.now_ns - newest

    @property
    def is_left(self) -> bool:
        """Every sender is silent, reports only ended processes, or reports a newer attempt."""
        return all(sender.silent or self._only_ended(sender) for sender in self.senders.values())

    def retire(self, node: str) -> None:
        """`node` reports a newer attempt of the job: it is neither silent nor part of this one."""
        self.senders.pop(node, None)

    def evidence(self, decision: Decision) -> tuple[dict[RowKind, Rows], int]:
        """Rows for a signal, most telling first, and how many rows were cut."""
        if decision.kind is DecisionKind.SCALING:
            rows = self.iterations.close(self.members)
            self.refused[Refusal.ITERATION_ROWS_FULL] += self.iterations.take_dropped()
            return bound_rows({kind: table for kind, table in rows.items() if len(table)})
        if decision.kind is DecisionKind.SLOW:
            extras = self.slow.evidence(self.members, self.processes)
        else:
            extras = gather_extras(self.senders.values())
        # A row that nobody has renewed is history: the judge must not take it for 'has not entered'.
        stale_ns = max(EVIDENCE_STALE_NS, MISSED_MAX * self.period_ns)
        gone = (self.processes.marks & GONE.value) != 0
        fresh = gone | (self.now_ns - self.processes.seen_ns <= stale_ns)
        fresh_members = self.now_ns - self.members.seen_ns <= stale_ns
        fresh_members |= np.isin(self.members.rank, self.processes.rank[gone])
        rows = {
            RowKind.PROCESS: self.processes.rows[fresh],
            RowKind.STATE: self.members.rows[fresh_members],
            **extras,
        }
        return bound_rows({kind: table for kind, table in rows.items() if len(table)})

    def _judge_silence(self) -> list[Decision]:
        decisions = []
        for node in self._backs:
            seq = self.senders[node].seq if node in self.senders else 0
            decisions.append(Decision(DecisionKind.HEARTBEAT_BACK, Reason.PROGRESS, node=node, node_seq=seq))
        self._backs = []
        limit_ns = int(self.policy.stall.silence_s * 1000) * MS
        self.period_ns = max(map(_PERIOD_NS, self.senders.values()), default=0)
        heard_ns = self.now_ns - limit_ns
        if min(map(_SEEN_NS, self.senders.values()), default=heard_ns) >= heard_ns:
            return decisions
        for sender in [one for one in self.senders.values() if one.seen_ns < heard_ns]:
            patience_ns = max(limit_ns, MISSED_MAX * sender.period_ns)
            if sender.silent or self.now_ns - sender.seen_ns <= patience_ns:
                continue
            if self._only_ended(sender):
                continue  # nothing left to report
            sender.silent = True
            decisions.append(
                Decision(DecisionKind.HEARTBEAT_LOST, Reason.NONE, node=sender.node, node_seq=sender.seq)
            )
        return decisions

    def _only_ended(self, sender: Sender) -> bool:
        at = self.processes.locate(sender.ranks)
        return len(at) > 0 and bool(np.all(self.processes.marks[at] & GONE.value))

    def _judge_stalls(self) -> StallView | None:
        stall = self.policy.stall
        self._note_warmth()
        self.gate = judge_gate(self.processes, self.stepless_warm, stall)
        times = Times(
            now_ns=self.now_ns,
            since_gate_ms=(self.now_ns - self.last_gated_ns) // MS,
            since_held_ms=(self.now_ns - self.last_held_ns) // MS,
            stale_ns=max(int(stall.row_stale_s * 1000) * MS, MISSED_MAX * self.period_ns),
        )
        if self.gate.gate is not Gate.NONE:
            self.last_gated_ns = self.now_ns
        if self.gate.holds:
            self.last_held_ns = self.now_ns
        if len(self.members) == 0:
            return None
        peers = self._peers()
        self._learn_wait(peers)
        if not self.suspicion.active and not may_stall(self.members, peers, stall):
            return None
        return judge_stalls(
            self.members,
            self.processes,
            self._member_processes(),
            peers,
            self._learned_limits_ms(),
            self.usual_wait_ms,
            self.gate,
            times,
            stall,
        )

    def _note_warmth(self) -> None:
        if self.stepless_warm or len(self.members) == 0 or self.processes.step.any():
            return
        moves = moves_on(self.members, self.beat_looked_ns)
        self.beat_looked_ns = self.now_ns
        self.stepless_beats += moves
        age_ns = self.now_ns - self.first_ns
        self.stepless_warm = is_stepless_warm(
            self.members, self.stepless_beats, moves, age_ns, self.policy.stall
        )

    def _learn_wait(self, peers: Rows) -> None:
        if self.suspicion.active or self.gate.gate is not Gate.NONE:
            self.longest_wait_ms = 0
            return
        longest_ms = longest_wait_ms(self.members, peers, int(self.policy.stall.floor_s * 1000))
        self.usual_wait_ms = learn_usual_wait(self.usual_wait_ms, self.longest_wait_ms, longest_ms)
        self.longest_wait_ms = longest_ms

    def _peers(self) -> Rows:
        held = filter(None, map(_EXTRAS, self.senders.values()))
        parts = [extras[RowKind.PEER] for extras in held if RowKind.PEER in extras]
        return join_rows(parts) if parts else np.zeros(0, ROW_DTYPES[RowKind.PEER])

    def _member_processes(self) -> Ints:
        key = (self.members.generation, self.processes.generation)
        if key != self._process_of_key:
            self._process_of = self.processes.locate(self.members.rank)
            self._process_of_key = key
        return self._process_of

    def _learned_limits_ms(self) -> Ints:
        stall = self.policy.stall
        self.slow.keys.align(self.members.comms)
        return self.slow.limits_ms(stall.base_factor, stall.usual_factor, int(stall.backstop_s * 1000))

    # ------------------------------------------------------------------ decisions

    def _decide(self, view: StallView | None) -> list[Decision]:
        was_active = self.suspicion.active
        if view is not None:
            self.suspicion.settle(self.members, view, self.policy.stall.clear_ticks)
            self.refused[Refusal.SUSPECTS_FULL] += self.suspicion.note(self.members, view, self.now_ns)
        died = self._process_died()
        self.suspicion.note_process(
            self.now_ns,
            dead=died,
            revived=self.dead_since_ns == 0,
            host_wait=self._host_waits(),
            calm_ticks_min=self.policy.stall.clear_ticks,
        )
        comm, stalled_round = self.suspicion.first
        if self.suspicion.active:
            calm = self.suspicion.is_calm
            is_news = self.quiet_ns <= QUIET_NS_MAX and not calm
            if is_news and self.suspicion.due(self._digest(), self.now_ns):
                return [Decision(DecisionKind.STALLED, self._reason(), comm, stalled_round)]
            return []
        if was_active:
            self.suspicion = Suspicion()
            return [Decision(DecisionKind.CLEAR, Reason.PROGRESS, comm, stalled_round)]
        if self.now_ns < self.asked_until_ns and self.now_ns - self.state_published_ns >= SECOND_NS:
            self.state_published_ns = self.now_ns
            return [Decision(DecisionKind.STATE, Reason.OTHER_SHARD)]
        return []

    def _decide_slow(self, was_slow: bool) -> list[Decision]:
        """A stall comes first: while it lasts, slow rounds are old news."""
        comm, number = self.slow.opened
        if was_slow and not self.slow.active:
            self.slow.end_episode()
            return [Decision(DecisionKind.CLEAR, Reason.PROGRESS, comm, number, slow=True)]
        if not self.suspicion.active and self.slow.due(self.now_ns):
            return [Decision(DecisionKind.SLOW, self.slow.reason, comm, number, slow=True)]
        return []

    def _decide_scaling(self, learn: bool) -> list[Decision]:
        """A window of iterations, of a healthy job too; steps under a gate are left out of it."""
        ranks = self.world_size or len(self.processes)
        if ranks != self.iterations.ranks:
            self.iterations.ranks = ranks
            for sender in self.senders.values():
                sender.followed = self.iterations.follows(sender.node)
        if not learn and len(self.processes):
            steps = self.processes.step
            self.iterations.skip(int(steps.min()), int(steps.max()))
        if not self.iterations.due(self.now_ns, self.slow.steps.step):
            return []
        return [Decision(DecisionKind.SCALING, Reason.WINDOW)]

    def _reason(self) -> Reason:
        for tracked in self.suspicion.tracked.values():
            return tracked.reason
        return Reason.PROCESS_DEAD if self.suspicion.process_dead else Reason.HOST_WAIT

    def _digest(self) -> int:
        """Changes when the evidence says something new; ages alone do not."""
        tracked = [(comm, entry.round) for comm, entry in self.suspicion.tracked.items()]
        silent = sum(map(_SILENT, self.senders.values()))
        telling = filter(None, map(_EXTRAS, self.senders.values()))
        extras = sum(len(rows) for held in telling for rows in held.values())
        progress = (int(self.members.head_round.sum()), int(self.members.completed.sum()))
        text = repr((tracked, silent, extras, progress)).encode()
        return zlib.crc32(self.processes.marks.tobytes(), zlib.crc32(text))

    def _process_died(self) -> bool:
        """A process died in disorder, for long enough that the reports of others are in, too."""
        if not np.any(self.processes.marks & Mark.DEAD.value):
            self.dead_since_ns = 0
            return False
        self.dead_since_ns = self.dead_since_ns or self.now_ns
        return self.now_ns - self.dead_since_ns >= int(self.policy.stall.dead_floor_s * 1000) * MS

    def _host_waits(self) -> bool:
        if len(self.processes) == 0:
            return False
        rendezvous_ms, usual_ms = host_wait_limits_ms(self.gate, self.policy.stall)
        if not self.processes.host_wait.any():
            return False
        rows = self.processes.rows
        alive = (self.processes.marks & GONE.value) == 0
        limit_ms = np.where(rows["host_wait"] == HostWait.BOOTSTRAP, rendezvous_ms, usual_ms)
        waits = alive & (rows["host_wait"] != HostWait.NONE)
        return bool(np.any(waits & (rows["host_wait_age_ms"] >= limit_ms)))

    def _has_ended(self) -> bool:
        """Every process is gone and none died in disorder."""
        marks = self.processes.marks
        complete = len(marks) > 0 and len(marks) >= self.world_size
        if not complete or not bool(np.all(marks & GONE.value)) or np.any(marks & Mark.DEAD.value):
            self.gone_since_ns = 0
            return False
        self.gone_since_ns = self.gone_since_ns or self.now_ns
        return self.now_ns - self.gone_since_ns >= int(self.policy.stall.ended_after_s * 1000) * MS

    def _end(self, reason: Reason) -> list[Decision]:
        decisions = []
        if self.suspicion.active:
            comm, stalled_round = self.suspicion.first
            decisions.append(Decision(DecisionKind.CLEAR, reason, comm, stalled_round))
        if self.slow.active:
            decisions.append(Decision(DecisionKind.CLEAR, reason, *self.slow.opened, slow=True))
        self.suspicion = Suspicion()
        self.slow.hot.clear()
        self.slow.end_episode()
        decisions.append(Decision(DecisionKind.ENDED, reason))
        return decisions
