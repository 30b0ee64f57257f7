"""Building the groups of a generation without waiting for it when something newer comes: gloo blocks."""

import threading
from collections.abc import Callable

from paceline.trainer.groups import Groups, Prepared, join_store

LOOK_S = 0.002


class Superseded(RuntimeError):
    """A newer generation was ordered while this one was being built."""


def build(
    groups: Groups,
    endpoint: str,
    number: int,
    attempt: int,
    rank: int,
    size: int,
    timeout_s: float,
    is_superseded: Callable[[], bool],
) -> None:
    """End the present groups, build new ones over the store at `endpoint` and swap them in.

    A thread does the waiting, and is left behind with its half-built groups where something newer comes.
    Raises Superseded, RebuildFailed.
    """
    groups.life.end(f"generation {number} is being built")
    made: list[Prepared] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            store = join_store(endpoint)
            made.append(groups.prepare(number, attempt, store, rank, size, timeout_s))
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="paceline-build", daemon=True).start()
    while not done.wait(LOOK_S):
        if is_superseded():
            raise Superseded(f"a newer order came while generation {number} was being built")
    if failed:
        raise failed[0]
    groups.switch(made[0])
    # Whoever ended the groups before the swap ended the old ones.
    if is_superseded():
        groups.abort(groups.generation, "a newer generation begins")
        raise Superseded(f"a newer order came while generation {number} was being built")
