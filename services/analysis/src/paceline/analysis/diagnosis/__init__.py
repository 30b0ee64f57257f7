"""From facts to an answer: identity, rules in a visible order, the answer and its JSON."""

from paceline.analysis.diagnosis.answer import (
    EXIT_ANSWERED,
    EXIT_INCONCLUSIVE,
    EXIT_UNUSABLE,
    Blame,
    Diagnosis,
    Ground,
    Seen,
)
from paceline.analysis.diagnosis.run import diagnose, diagnose_reading

__all__ = [
    "EXIT_ANSWERED",
    "EXIT_INCONCLUSIVE",
    "EXIT_UNUSABLE",
    "Blame",
    "Diagnosis",
    "Ground",
    "Seen",
    "diagnose",
    "diagnose_reading",
]
