"""What a session raises, and which errors of a step are transient."""

import errno

_TRANSIENT_ERRNO = frozenset({errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ECONNRESET, errno.EPIPE})


class TransientFault(RuntimeError):
    """For a script to raise inside a step: the step is run again, with the same members."""


class NotRepaired(RuntimeError):
    """Nobody led the recovery of this generation in time, or it cannot be made; `__cause__` has the fault.

    The job ends as it would without Paceline: restart it from its checkpoint.
    """


def transient_reason(error: BaseException) -> str:
    """Why `error` may pass if the step is run again; empty where it is not known to.

    The taxonomy of DEADPOOL: what lives and reports a storage, network or timeout error is transient.
    """
    if isinstance(error, TransientFault):
        return "the script called it transient"
    if isinstance(error, (TimeoutError, ConnectionError)):
        return "a timeout or a lost connection"
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return f"errno {error.errno}"
    return ""
