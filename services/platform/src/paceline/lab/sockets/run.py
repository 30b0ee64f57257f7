"""One run: healthy rounds, a fault, a verdict."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext

from paceline.agent.pages import PageView
from paceline.collectives.host.schedule import Cut, Topology, make_schedule
from paceline.contracts.codes import Algorithm
from paceline.contracts.ids import communicator_id
from paceline.contracts.verdicts import Verdict
from paceline.lab.processes import LabError
from paceline.lab.sockets.faults import Fault, Injection, Score, plan_injection, score
from paceline.lab.sockets.network import Network
from paceline.lab.sockets.observe import COMM_NAME, Observer
from paceline.lab.sockets.rank import RankPlan
from paceline.lab.sockets.signature import RankSignature, measure, median_ms
from paceline.lab.sockets.team import Team, start_team

SAMPLE_S = 0.25
WARM_ROUNDS = 24  # the detector learns its base line from 20
WARM_S_MAX = 40.0
VERDICT_S_MAX = 15.0
SETTLE_S = 1.0  # after the first verdict a better one may follow
FREEZE_TRIES_MAX = 200


@dataclass(frozen=True)
class RunOptions:
    """The job of every run."""

    algorithm: Algorithm = Algorithm.RING
    size: int = 8
    shuffle: bool = False
    trees: int = 1
    elements: int = 64 * 1024
    slice_elements: int = 2048
    window: int = 4
    compute_ms: float = 5.0
    see_processes: bool = True
    close: bool = True  # EDGE rows in every sample: a run is shorter than the period of the agent
    healthy_s: float = 8.0  # of a run without a fault


@dataclass(frozen=True)
class RunResult:
    """One line of the report. `score` is of the last verdict, `first` of the first conclusive one."""

    seed: int
    injection: Injection
    topology: Topology
    score: Score
    first: Score
    early: bool  # a verdict while all was well: nothing was injected then
    verdict: Verdict | None
    revisions: tuple[str, ...]  # what was said, oldest first
    base_ms: float  # median T of the healthy rounds
    verdict_s: float  # from the fault to the first verdict, 0 where there is none
    signatures: list[RankSignature]
    reasons: dict[str, int]


class Run:
    """State of one run."""

    def __init__(
        self,
        team: Team,
        network: Network,
        observer: Observer,
        injection: Injection,
        topology: Topology,
        options: RunOptions,
    ) -> None:
        self._team = team
        self._network = network
        self._observer = observer
        self._injection = injection
        self._topology = topology
        self._options = options
        self._next_s = time.monotonic()

    def warm_up(self) -> float:
        """Healthy rounds until the base line is learned; the usual T in ms."""
        wanted = WARM_ROUNDS + self._injection.after_rounds
        self._watch(
            lambda: min(int(view.frames["completed"][0]) for view in self.views()) >= wanted, WARM_S_MAX
        )
        self._team.check_sums()
        return median_ms(self.views()[0])

    def inject(self, base_ms: float) -> None:
        """Let the fault begin."""
        fault, network, team = self._injection, self._network, self._team
        if fault.link is not None and fault.slow_factor:
            network.slow(*fault.link, self._slow_mbit(fault.link, fault.slow_factor * base_ms))
        elif fault.link is not None:
            network.cut(*fault.link)
        if fault.rank is None:
            return
        if fault.late_factor:
            team.make_late(fault.rank, fault.late_factor * base_ms)
        elif fault.fault is Fault.NIC:
            network.unplug(fault.rank)
        elif fault.fault is Fault.FROZEN:
            self._freeze(fault.rank)
        elif fault.fault is Fault.STUCK:
            self._freeze(fault.rank)
            team.stick(fault.rank)  # delivered when it goes on
            team.thaw(fault.rank)

    def await_verdict(self) -> None:
        """Until a verdict has settled, or nothing more can be expected."""
        if self._injection.fault is Fault.NONE:
            self._watch(lambda: bool(self._observer.verdicts), self._options.healthy_s)
            self._team.check_sums()
            return
        self._watch(lambda: bool(self._observer.conclusive), VERDICT_S_MAX)
        if self._observer.conclusive:
            self._watch(lambda: False, SETTLE_S)

    def views(self) -> list[PageView]:
        return [member.page.read() for member in self._team.members]

    def _slow_mbit(self, link: tuple[int, int], round_ms: float) -> float:
        """Rate at which `link` takes so long for what it carries in one round."""
        carried = link_bytes(self._topology, link, self._options.elements, self._options.slice_elements)
        return carried * 8 / 1e6 / (round_ms / 1e3)

    def _freeze(self, rank: int) -> None:
        """Stop it inside an operation, not between two."""
        for _ in range(FREEZE_TRIES_MAX):
            self._team.freeze(rank)
            if self._team.is_inside(rank):
                return
            self._team.thaw(rank)
            time.sleep(0.003)
        raise LabError(f"rank {rank} is never inside an operation")

    def _watch(self, done: Callable[[], bool], limit_s: float) -> None:
        """Sample at the fixed rate until `done` or the limit."""
        until_s = time.monotonic() + limit_s
        while not done() and time.monotonic() < until_s:
            time.sleep(max(0.0, self._next_s - time.monotonic()))
            self._next_s = max(self._next_s + SAMPLE_S, time.monotonic())
            self._observer.sample(self._team.members)


def make_topology(options: RunOptions, chance: random.Random) -> Topology:
    """Ranks in order, or shuffled where wanted."""
    order = list(range(options.size))
    if options.shuffle:
        chance.shuffle(order)
    return Topology(options.algorithm, tuple(order), options.trees)


def link_bytes(topology: Topology, link: tuple[int, int], elements: int, slice_elements: int) -> int:
    """Payload that `link` (sender, receiver) carries in one all-reduce, in both trees where there are two."""
    schedule = make_schedule(topology, link[0], elements, Cut(slice_elements))
    steps = [step for program in schedule.programs for step in program]
    return sum(4 * (step.stop - step.start) for step in steps for edge in step.sends if edge.peer == link[1])


def run_once(
    context: ForkServerContext, network: Network, fault: Fault, options: RunOptions, seed: int
) -> RunResult:
    """A job from start to end; LabError where something but the verdict went wrong."""
    chance = random.Random(f"run {seed}")
    topology = make_topology(options, chance)
    injection = plan_injection(fault, topology, chance)
    job, attempt = f"sockets-{seed}", "a1"
    comm = communicator_id(COMM_NAME, range(options.size))
    observer = Observer(
        job, attempt, comm, topology, see_processes=options.see_processes, close=options.close
    )
    addresses = tuple(network.address(rank) for rank in range(options.size))
    plans = [
        RankPlan(
            job, attempt, rank, comm, topology, network.namespace(rank), addresses, options.elements,
            options.slice_elements, options.window, options.compute_ms, seed,
        )
        for rank in range(options.size)
    ]  # fmt: skip
    try:
        with start_team(context, plans) as team:
            observer.register(team.members)
            run = Run(team, network, observer, injection, topology, options)
            base_ms = run.warm_up()
            before, begun_ns = run.views(), time.monotonic_ns()
            early = bool(observer.verdicts)
            if not early:
                run.inject(base_ms)
                run.await_verdict()
            signatures = measure(range(options.size), before, run.views(), time.monotonic_ns())
    finally:
        network.heal()
    said, conclusive = observer.verdict, observer.conclusive
    first_ns = observer.verdicts[0][0] if observer.verdicts else begun_ns
    truth = Injection(Fault.NONE) if early else injection
    return RunResult(
        seed, injection, topology, score(truth, said), score(truth, conclusive[0] if conclusive else said),
        early, said, tuple(verdict.summary for _, verdict in observer.verdicts), round(base_ms, 1),
        round((first_ns - begun_ns) / 1e9, 2), signatures, observer.explain(),
    )  # fmt: skip
