"""The localizer: reads signals, the registry and health; writes verdicts.

Called by nobody; it meets the others in topics. All signals of one job come from one partition, so
one instance judges a job; the registry and health are read whole by every instance.

Promises: a verdict follows from records alone (time is that of the signals), ids come from job,
attempt, episode and revision, so a replay publishes the same records again; one episode is one
chain of revisions; a published cause is only replaced by a better one. Memory is bounded by
`LocalizerSettings`; what is forgotten or refused is counted.
"""

from paceline.localizer.app import LocalizerApp
from paceline.localizer.core import LocalizerCore
from paceline.localizer.settings import LocalizerSettings

__all__ = ["LocalizerApp", "LocalizerCore", "LocalizerSettings"]
