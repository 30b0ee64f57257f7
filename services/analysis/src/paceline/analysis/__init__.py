"""Evidence in, verdict out. Pure: no clock, no I/O, no randomness; numpy arrays and dataclasses only.

`build_evidence` turns decoded batches, registry records and health events into `JobEvidence`;
`judge` turns that into a `Verdict`; `dump_bundle` and `load_bundle` keep the exact inputs, so that
every verdict can be given again. Called by the localizer, the simulator and `paceline diagnose`.
A member that nobody reported is unknown; it is never taken for a member that did not enter.
"""

from paceline.analysis.builder import build_evidence
from paceline.analysis.bundles import BundleError, Judged, dump_bundle, load_bundle, load_judged
from paceline.analysis.evidence import JobEvidence
from paceline.analysis.judge import judge
from paceline.analysis.policy import JudgePolicy

__all__ = [
    "BundleError",
    "JobEvidence",
    "JudgePolicy",
    "Judged",
    "build_evidence",
    "dump_bundle",
    "judge",
    "load_bundle",
    "load_judged",
]
