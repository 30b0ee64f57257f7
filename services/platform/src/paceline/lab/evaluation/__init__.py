"""The evaluation: simulated jobs with known faults through the real detector and localizer, in memory.

What the agents of a simulated job would publish goes through `DetectorCore` and `LocalizerCore` as the
services run them, in simulated time; the verdicts are compared with what was injected
(docs/adr/0021-evaluation.md).
"""
