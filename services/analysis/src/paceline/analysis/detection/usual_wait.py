"""How long the longest wait of a job is while all is well: a stall is what comes on top of it.

Job-wide on purpose, as the phase gate: who waits for a paused rank is itself waited for elsewhere,
so the wait of a pause adds to the one that a pipeline has anyway.
"""

import numpy as np

from paceline.analysis.detection.arrays import Rows
from paceline.analysis.detection.members import Members

_UP, _DOWN = 0.09, 0.01  # nine waits in ten are shorter than the usual one
_STEP_MS_MIN = 20.0


def longest_wait_ms(members: Members, peers: Rows, below_ms: int) -> int:
    """Age of the oldest open operation below `below_ms`: what is older is stalled, forgotten or gated."""
    ages = [members.head_age_ms, peers["head_age_ms"].reshape(-1)] if len(peers) else [members.head_age_ms]
    return max(int(np.max(age, initial=0, where=age < below_ms)) for age in ages)


def learn_usual_wait(usual_ms: int, before_ms: int, now_ms: int) -> int:
    """The usual wait after a tick. A wait counts once it is over, so that a stall never teaches itself."""
    if now_ms >= before_ms:
        return usual_ms
    share = _UP if before_ms > usual_ms else -_DOWN
    return round(usual_ms + share * max(usual_ms, _STEP_MS_MIN / _UP))
