"""SET_DETAIL: how much the probes of one attempt on this node are asked for, until the command expires."""

from collections.abc import Collection

from paceline.agent.app import AgentApp
from paceline.agent.collecting import Answer, check_command
from paceline.contracts.codes import DetailLevel
from paceline.contracts.commands import Command
from paceline.contracts.detail import read_level
from paceline.runtime.clock import Clock


def decide_detail(
    command: Command, node: str, key: bytes | None, now_unix_s: float, known: Collection[str], living: int
) -> tuple[Answer, DetailLevel]:
    """Whether the command is obeyed, and the level; `living` processes of its attempt are on this node."""
    answer = check_command(command, node, key, now_unix_s, known)
    if answer is not Answer.ACCEPT:
        return answer, DetailLevel.ROUNDS
    try:
        level = read_level(command.arguments)
    except ValueError:
        return Answer.BAD_ARGUMENT, DetailLevel.ROUNDS
    return Answer.ACCEPT if living else Answer.NO_JOB, level


def set_detail(
    command: Command, agent: AgentApp, node: str, key: bytes | None, clock: Clock, known: Collection[str]
) -> tuple[Answer, str]:
    """Obey or not; the text is for the result."""
    job = (command.job, command.attempt)
    living = agent.roster.living(job)
    now_unix_s = clock.unix_s()
    answer, level = decide_detail(command, node, key, now_unix_s, known, len(living))
    if answer is not Answer.ACCEPT:
        return answer, "detail was not set"
    left_s = command.expires_unix_s - now_unix_s
    report = agent.sampler.detail.ask(job, level, left_s, clock.monotonic_ns(), living)
    return answer, report.text()
