"""What a long job loses to failures under three policies: restart, survivors go on, and hot swap.

Pure and seeded: a scenario in, a report out, no clock and no I/O. Called by `paceline economics` and by
whoever shows the economics of one job. Every number of a scenario carries its unit and its source;
what a paper states, what was measured and what is assumed are told apart there
(docs/adr/0044-economics.md).
"""

from paceline.analysis.economics.report import Report, compare
from paceline.analysis.economics.scenario import Scenario, UnusableScenario, scenario_of_job
from paceline.analysis.economics.scenarios import SCENARIOS

__all__ = ["SCENARIOS", "Report", "Scenario", "UnusableScenario", "compare", "scenario_of_job"]
