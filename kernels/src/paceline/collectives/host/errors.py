"""Why a collective could not be carried out. All of them leave the group unusable."""


class HostCollectiveError(Exception):
    """Base of all errors of this package."""


class PeerLostError(HostCollectiveError):
    """A peer's connection ended while something was still expected of it."""

    def __init__(self, peer: int, detail: str) -> None:
        super().__init__(f"rank {peer} hung up: {detail}; look at that rank's own log, then restart the job")
        self.peer = peer


class MismatchError(HostCollectiveError):
    """A peer sent what does not belong to this operation: the ranks call different operations."""

    def __init__(self, peer: int, got: str, expected: str) -> None:
        super().__init__(f"rank {peer} sent {got}, expected {expected}; the ranks call different operations")
        self.peer = peer


class RendezvousError(HostCollectiveError):
    """The ranks did not all meet in time, or somebody else called."""


class TimedOutError(HostCollectiveError):
    """An operation took longer than its limit."""
