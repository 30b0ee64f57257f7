"""Per-step protection: after each optimizer step a copy of the rank's state leaves the live tensors.

The training loop talks to `Protector`: `begin_step`, `end_step`; after a fault all members of the new
generation call `restore`. Own slots hold the last two steps of this rank, kept slots those of the rank
before it in the ring. Memory: twice the state of the rank and twice the neighbour's own part, in host
memory, allocated at the first step. Nothing is queued without a bound: at most one copy is in progress,
and the optimizer's next step waits for it. docs/adr/0039-per-step-protection.md.
"""

from paceline.trainer.protection.decide import (
    Fallback,
    FallbackReason,
    RestorePlan,
    RestoreReason,
    decide_restore,
)
from paceline.trainer.protection.errors import (
    DuplicateName,
    FallbackRequired,
    NotSettled,
    ProtectionError,
    StateMismatch,
    UnprotectableState,
)
from paceline.trainer.protection.exchange import Exchange, GroupExchange, Hub
from paceline.trainer.protection.identity import Holding, Member, Part, Place, ShardIdentity
from paceline.trainer.protection.protector import Protector
from paceline.trainer.protection.restore import RestoreReport, restore
from paceline.trainer.protection.state import Protected

__all__ = [
    "DuplicateName",
    "Exchange",
    "Fallback",
    "FallbackReason",
    "FallbackRequired",
    "GroupExchange",
    "Holding",
    "Hub",
    "Member",
    "NotSettled",
    "Part",
    "Place",
    "Protected",
    "ProtectionError",
    "Protector",
    "RestorePlan",
    "RestoreReason",
    "RestoreReport",
    "ShardIdentity",
    "StateMismatch",
    "UnprotectableState",
    "decide_restore",
    "restore",
]
