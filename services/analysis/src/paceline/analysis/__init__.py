"""Evidence in, verdict out. Pure: no clock, no I/O, no randomness; numpy arrays and dataclasses only.

`build_evidence` turns decoded batches, registry records and health events into `JobEvidence`;
`judge.judge` turns that into a `Verdict`; `dump_bundle` and `load_bundle` keep the exact inputs, so that
every verdict can be given again. Called by the localizer, the simulator and `paceline diagnose`.
A member that nobody reported is unknown; it is never taken for a member that did not enter.

Names are imported when they are asked for: a command that starts only to read files pays for no more.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.analysis.builder import build_evidence
    from paceline.analysis.bundles import BundleError, Judged, dump_bundle, load_bundle, load_judged
    from paceline.analysis.evidence import JobEvidence
    from paceline.analysis.policy import JudgePolicy

__all__ = [
    "BundleError",
    "JobEvidence",
    "JudgePolicy",
    "Judged",
    "build_evidence",
    "dump_bundle",
    "load_bundle",
    "load_judged",
]
_PLACES = {
    "BundleError": "bundles",
    "JobEvidence": "evidence",
    "JudgePolicy": "policy",
    "build_evidence": "builder",
    "dump_bundle": "bundles",
    "Judged": "bundles",
    "load_bundle": "bundles",
    "load_judged": "bundles",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
