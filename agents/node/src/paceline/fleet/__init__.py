"""The fleet simulator: what the agents of a training job would publish, from 8 to 100,000 ranks.

A job is `Topology` x `Program` under a `Profile` (what a probe can see), with `Fault`s and
`Conditions`, all drawn from one seed. `FleetJob.records(t)` gives the exact records of second t,
`FleetJob.truth()` what was injected. No Kafka, no wall clock, no sleep in here; only `commands`
publishes (docs/adr/0018-fleet-simulator.md).
"""

from paceline.fleet.faults import Conditions, Fault, FaultKind, Pause, draw_faults
from paceline.fleet.layout import CommKind, Topology
from paceline.fleet.profiles import Profile, ProfileName
from paceline.fleet.program import Program
from paceline.fleet.publish import FleetJob, FleetRecord
from paceline.fleet.truth import Truth

__all__ = [
    "CommKind",
    "Conditions",
    "Fault",
    "FaultKind",
    "FleetJob",
    "FleetRecord",
    "Pause",
    "Profile",
    "ProfileName",
    "Program",
    "Topology",
    "Truth",
    "draw_faults",
]
