"""What can go wrong with protection, each with what the user can do about it."""


class ProtectionError(RuntimeError):
    """Base of all errors of this room."""


class DuplicateName(ProtectionError):
    """Two protected objects have one name."""


class UnprotectableState(ProtectionError):
    """A state holds something that is neither JSON nor a dense tensor; raised at start, never at a step."""


class StateMismatch(ProtectionError):
    """A copy does not fit the objects that it is to be loaded into."""


class NotSettled(ProtectionError):
    """A copy in progress does not end, so nothing can be restored on this rank yet."""


class WireError(ProtectionError):
    """A peer's message is malformed, too large, not authentic or of another generation."""


class FallbackRequired(ProtectionError):
    """No step can be restored from memory: the disk checkpoint is next, and a human is told.

    `reason` is the name of the reason (`FallbackReason`), `detail` what is missing.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}; restart from the last checkpoint on disk")
        self.reason = reason
        self.detail = detail
