"""Faults on purpose, for the tests of a training script that has to survive them.

    pytest_plugins = ["paceline.trainer.testing.fixture"]

    def test_my_script_survives(repair_job, uninterrupted, same_outcomes):
        faulty = repair_job("train.py", ranks=4, standbys=1, faults=[Fault("sigkill", 2, 7, "in_collective")])
        faulty.await_end()
        same_outcomes(faulty.outcomes(), uninterrupted("train.py", ranks=4))

No agent, no platform: a `LocalController` in the test's process leads the recoveries over the same
socket and with the same messages as the platform does.
"""

from paceline.trainer.testing.controller import LocalController
from paceline.trainer.testing.faults import KINDS, PHASES, Fault, draw_fault
from paceline.trainer.testing.job import RepairJob

__all__ = ["KINDS", "PHASES", "Fault", "LocalController", "RepairJob", "draw_fault"]
