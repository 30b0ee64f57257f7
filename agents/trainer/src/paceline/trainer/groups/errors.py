"""What the groups of a process raise; all of them are RuntimeErrors, as torch's own are."""


def first_line(error: BaseException) -> str:
    """Of its message; empty where it has none."""
    return next(iter(str(error).strip().splitlines()), "")


class GenerationEnded(RuntimeError):
    """The groups of this generation are gone; nothing of them is written into a tensor any more.

    Not a defect of the script: the step that raised it is run again once the groups are rebuilt. A
    script that runs without `paceline.trainer` repair never sees it.
    """

    def __init__(self, generation: int, reason: str) -> None:
        super().__init__(f"generation {generation} of the process groups has ended: {reason}")
        self.generation = generation
        self.reason = reason


class PeerLost(GenerationEnded):
    """The transport of this rank failed first, before anybody ended the generation.

    `__cause__` is the error of the backend. It names an innocent neighbour as often as the culprit.
    """


class RebuildFailed(RuntimeError):
    """The groups of a new generation could not be built; the old ones stay ended. Retry as a new attempt."""


class OtherGroups(ValueError):
    """A rank is a member of other kinds of groups than this process, which cannot take its place."""


class NotSwappable(RuntimeError):
    """The groups of this job cannot be replaced while it runs; the message says why and what to do."""


class CallRefused(RuntimeError):
    """A group that stands for another one does not know this call; base of the sandbox's errors."""
