"""Warming a standby up without the others (docs/adr/0041-sandbox.md).

    recorder = record(groups, role="middle")         # on the chosen rank, before the first group is made
    ...; recorder.end_step()                         # after each of the first steps
    save(recorder.recording(), path)

    groups = install(...); stay_outside(groups, load(path))    # in the standby, before init_process_group
    ...                                              # the same script: two steps, no packet
    groups.rebuild(...)                              # promoted

Torch is imported by what needs tensors only.
"""

from paceline.trainer.sandbox.errors import NotRecorded, RecordingRefused, SequenceChanged
from paceline.trainer.sandbox.files import load, save
from paceline.trainer.sandbox.recorder import Recorder, choose_recorders, record
from paceline.trainer.sandbox.recording import Call, GroupRecording, Output, Recording
from paceline.trainer.sandbox.replay import ReplayBackend, ReplayGroup, rehearse, stay_outside

__all__ = [
    "Call", "GroupRecording", "NotRecorded", "Output", "Recorder", "Recording", "RecordingRefused",
    "ReplayBackend", "ReplayGroup", "SequenceChanged", "choose_recorders", "load", "record", "rehearse",
    "save", "stay_outside",
]  # fmt: skip
