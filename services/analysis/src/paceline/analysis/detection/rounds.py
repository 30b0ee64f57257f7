"""Kept rounds of all communicators."""

from collections.abc import Mapping

import numpy as np

from paceline.analysis.detection.arrays import Rows
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.policy import DetectionPolicy
from paceline.contracts.batch import RowKind

Arrays = Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]


class RoundWindow:
    def __init__(self, policy: DetectionPolicy) -> None:
        self.policy = policy

    def evidence(self, members: Members) -> dict[RowKind, Rows]:
        return {}

    def arrays(self) -> Arrays:
        return {}

    def array_dtypes(self) -> dict[str, np.dtype[np.generic]]:
        return {}

    def restore(self, members: Members, arrays: Arrays) -> None:
        pass
