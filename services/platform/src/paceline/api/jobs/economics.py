"""What failures would cost a job of this size: `paceline economics` with what is known of the job."""

from paceline.analysis.economics import SCENARIOS, Scenario, UnusableScenario, compare, scenario_of_job
from paceline.analysis.economics.report import Outcome
from paceline.api.jobs.schemas import EconomicsOutcomeRead, EconomicsParameterRead, EconomicsRead

SEEDS = 10  # of a large job a run takes 50 ms
REPLICA_AXIS = "dp"
SAME_NAME = (
    "policy", "title", "down_hours", "replay_hours", "reduced_hours", "overhead_hours", "standby_hours",
    "replayed_steps_most",
)  # fmt: skip


def choose_scenario(
    ranks: int, nodes: int, axes: dict[str, int], step_s: float | None, failure_every_s: float | None
) -> Scenario:
    """`axes`: number of values seen of each mesh coordinate. ValueError is never raised for known jobs."""
    return scenario_of_job(
        SCENARIOS["job"],
        ranks=ranks,
        nodes=nodes,
        step_s=step_s,
        replicas=axes.get(REPLICA_AXIS),
        failure_every_s=failure_every_s,
    )


def build_economics(job: str, attempt: str, scenario: Scenario) -> EconomicsRead:
    """Pure and slow for an event loop: run it in a thread."""
    refused = ""
    outcomes: tuple[Outcome, ...] = ()
    try:
        outcomes = compare(scenario, seeds=SEEDS).outcomes
    except UnusableScenario as error:
        refused = str(error)
    return EconomicsRead(
        job=job,
        attempt=attempt,
        seeds=SEEDS,
        parameters=[
            EconomicsParameterRead(name=each.name, value=each.value, unit=each.unit, source=each.source)
            for each in scenario.parameters()
        ],
        outcomes=[_outcome(each) for each in outcomes],
        refused=refused,
    )


def _outcome(found: Outcome) -> EconomicsOutcomeRead:
    return EconomicsOutcomeRead(
        **{name: getattr(found, name) for name in SAME_NAME},
        ettr=found.ettr.mean,
        ettr_least=found.ettr.least,
        ettr_most=found.ettr.most,
        wall_hours=found.wall_h.mean,
        lost_hours=found.lost_hours.mean,
        failures=found.failures.mean,
        fallbacks=found.fallbacks.mean,
        replayed_steps=found.replayed_steps.mean,
    )
