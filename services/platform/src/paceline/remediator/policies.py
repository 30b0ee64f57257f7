"""Rows of policies as the policy of one job: the most exact row wins, each limit by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from paceline.contracts.repair import RepairCause, RepairLimits, RepairMode
from paceline.remediator.model import Policies, Policy

LIMIT_NAMES = frozenset(each.name for each in fields(RepairLimits))


@dataclass(frozen=True)
class PolicyRow:
    """`job` and `cause` are empty where the row is for all of them."""

    job: str
    cause: str
    mode: str
    stopped: bool
    limits: Mapping[str, Any]


def read_policies(rows: Sequence[PolicyRow], job: str, base: Policy, *, may_act: bool) -> Policies:
    """The policies of `job`. A stop switch of any row that fits holds; without a key all is observed."""
    fitting = [row for row in rows if row.job in ("", job)]
    return Policies(
        _policy(fitting, None, base, may_act),
        {cause: _policy(fitting, cause, base, may_act) for cause in RepairCause},
        may_act,
    )


def _policy(rows: Sequence[PolicyRow], cause: RepairCause | None, base: Policy, may_act: bool) -> Policy:
    wanted = "" if cause is None else cause.value
    # From the most general to the most exact: a job's own word counts more than a cause's.
    mine = sorted(
        (row for row in rows if row.cause in ("", wanted)), key=lambda r: (r.job != "", r.cause != "")
    )
    policy = base
    for row in mine:
        mode = RepairMode(row.mode) if row.mode else policy.mode  # a row may be the stop switch alone
        policy = Policy(mode, policy.stopped or row.stopped, _limits(policy.limits, row.limits))
    if cause is RepairCause.REQUESTED and policy.mode is RepairMode.OBSERVE:
        policy = replace(policy, mode=RepairMode.APPROVE)  # somebody has asked for it
    return policy if may_act else replace(policy, mode=RepairMode.OBSERVE)


def _limits(base: RepairLimits, changes: Mapping[str, Any]) -> RepairLimits:
    known = {name: value for name, value in changes.items() if name in LIMIT_NAMES}
    return replace(base, **{name: type(getattr(base, name))(value) for name, value in known.items()})
