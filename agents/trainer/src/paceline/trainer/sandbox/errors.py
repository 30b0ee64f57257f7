"""What recording and replaying raise."""

from paceline.trainer.groups.errors import CallRefused


class NotRecorded(RuntimeError):
    """There is no recording: not yet enough steps, or more bytes than allowed. The message says which."""


class RecordingRefused(RuntimeError):
    """A file is no recording that this process may use: foreign, readable by others, expired or damaged."""


class SequenceChanged(CallRefused):
    """The standby made another call than the recorded rank made at this place; its warm-up ends here.

    Record again after a change of the script, the model or the number of ranks.
    """

    def __init__(self, group: str, number: int, expected: str, got: str) -> None:
        super().__init__(
            f"call {number} of group {group}: the recorded rank called {expected}, this standby calls {got}; "
            "record again after a change of the script, the model or the number of ranks"
        )
        self.group = group
        self.number = number
        self.expected = expected
        self.got = got
