"""Limits of a host that stop processes while they set themselves up: memory, files, threads."""

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, origins_of
from paceline.analysis.facts import Membership, SettingSeen
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

_ADVICE = {
    "shared memory": "a larger /dev/shm (--shm-size, an emptyDir of medium Memory)",
    "locked memory": "ulimit -l unlimited for the job (memlock of the container or of Slurm)",
    "open files": "a higher ulimit -n",
    "threads": "a higher ulimit -u or pids limit",
}


def limit_reached(case: Case) -> Finding | None:
    """A process could not set up its transport because the host's limit is reached; no machine is broken."""
    facts = [fact for fact in case.of(SettingSeen) if fact.name == "resource_out"]
    if not facts or any(fact.complete and fact.attempt == case.attempt for fact in case.of(Membership)):
        return None
    kind = facts[0].value
    facts = [fact for fact in facts if fact.value == kind]
    hosts = sorted({fact.speaker.host for fact in facts if fact.speaker.host})
    ranks = {rank for fact in facts if (rank := case.rank_of(fact)) is not None}
    where = f" on {', '.join(hosts[:8])}" if hosts else ""
    short = "/dev/shm" if kind == "shared memory" else kind  # noqa: S108
    return Finding(
        reason="limit_reached",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.BOOTSTRAP,
        roots=(
            Blame(
                RootKind.CONFIGURATION, name=f"{kind} ({short}) is exhausted{where}", why=facts[0].text[:120]
            ),
        ),
        victims=tuple(rank for rank in complaining(case) if rank not in ranks),
        phase=f"init of the transport ({kind})",
        owner=Owner.HOST,
        action=Action(ActionKind.FIX_CONFIGURATION, ", ".join(hosts), _ADVICE[kind]),
        confidence=0.85,
        grounds=(Ground("limit", facts[0].text[:200], origins_of(facts)),),
        summary=f"Processes{where} cannot set up their transport: {kind} ({short}) is exhausted; a limit "
        "of the host or container, no broken machine",
    )
