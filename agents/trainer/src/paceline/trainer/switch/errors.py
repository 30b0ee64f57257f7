"""What a planned switch raises; before the switch itself training goes on whatever is raised."""


class PrepareFailed(RuntimeError):
    """This participant could not prepare; its vote cancels the switch for all. Order it again, with a new
    attempt, when the cause is gone."""


class SwitchCancelled(RuntimeError):
    """The switch that this joiner was prepared for does not take place; it may be prepared for another."""


class TransferFailed(RuntimeError):
    """The state did not arrive as it was sent. It must not be used: recover from the protected copy."""
