"""Planned replacement in two phases: prepare while training goes on, switch at a step boundary.

`topology` says who is connected with whom, `planner` what has to change when machines are replaced,
`agree` when everybody switches: all three are pure and know no torch. Every participant computes the
plan alone and compares its digest with the others; nobody distributes it
(docs/adr/0045-planned-switch.md).
"""

from paceline.trainer.switch.planner import PlanRefused, Replacement, SwitchPlan, plan_switch
from paceline.trainer.switch.topology import Channel, Link, Member, Topology, derive_topology

__all__ = [
    "Channel",
    "Link",
    "Member",
    "PlanRefused",
    "Replacement",
    "SwitchPlan",
    "Topology",
    "derive_topology",
    "plan_switch",
]
