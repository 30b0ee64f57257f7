"""What the user's script holds."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from paceline.trainer.repair.engine import Engine
from paceline.trainer.repair.opening import open_engine
from paceline.trainer.repair.place import follows_rank

log = logging.getLogger("paceline")


class Session:
    """One training process's part in the repair of its job. Made by `open`; every method does nothing
    where there is no supervisor."""

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine

    @classmethod
    def open(cls, *, environment: Mapping[str, str] | None = None, **protected: Any) -> "Session":
        """Begin: after the model, its optimizer and the process group are made, before the first step.

        `protected` names objects with `state_dict` and `load_state_dict`: model, optimizer, scheduler,
        sampler or data loader. Random number generators are protected without being named. A torch
        `DistributedSampler` over all ranks may be named too: it has no state, and gets the rank that a
        standby is given. TypeError where any other object has not both.
        """
        for name, thing in protected.items():
            if not follows_rank(thing) and not (
                callable(getattr(thing, "state_dict", None))
                and callable(getattr(thing, "load_state_dict", None))
            ):
                raise TypeError(
                    f"Session.open({name}=...): {type(thing).__name__} has no state_dict and load_state_dict"
                )
        return cls(open_engine(os.environ if environment is None else environment, protected))

    @property
    def active(self) -> bool:
        """Whether faults are repaired here."""
        return self._engine is not None

    @property
    def live(self) -> bool:
        """False during the warm-up of a standby, whose results nobody shall see: write no file then."""
        return self._engine is None or self._engine.live

    @property
    def generation(self) -> int:
        """0 at first, one more after each repair."""
        return 0 if self._engine is None else self._engine.generation

    @property
    def protection(self) -> tuple[str, str]:
        """Of this rank's copies: `protected`, `degraded` or `off`, and why; where they take more than a
        hundredth of the time of the last steps, how much. The log says both when it begins."""
        return ("off", "no supervisor") if self._engine is None else self._engine.protection

    def steps(self, total: int, start: int = 0) -> Iterator[int]:
        """Numbers of the steps that are to be done, `start` to `total - 1`; one that failed comes again.

        A standby takes two steps without anybody else, waits here, and comes back with the step that is due.
        """
        return iter(range(start, total)) if self._engine is None else self._engine.steps(total, start)

    def step(self, number: int) -> AbstractContextManager[None]:
        """Around everything that one step changes; leaves no exception out that a repair takes care of."""
        return nullcontext() if self._engine is None else _StepContext(self._engine, number)

    def on_fault(self, call: Callable[[str], None]) -> None:
        """`call(reason)` once the step has failed, before anything is repaired."""
        if self._engine is not None:
            self._engine.hooks.on_fault.append(call)

    def on_rebuild(self, call: Callable[[int, int], None]) -> None:
        """`call(generation, step)` once the groups are new and the state is restored: reset caches here."""
        if self._engine is not None:
            self._engine.hooks.on_rebuild.append(call)

    def on_promote(self, call: Callable[[int], None]) -> None:
        """`call(rank)` in a standby that has become a member."""
        if self._engine is not None:
            self._engine.hooks.on_promote.append(call)

    def on_place(self, call: Callable[[int], Mapping[str, Any]], ranks: Sequence[int] = ()) -> None:
        """Where ranks hold different objects, as the stages of a pipeline do.

        `call(rank)` makes this process that rank and gives its objects by the names of `open`. It is called
        in a standby only: for each of `ranks`, one of each stage, to warm up as it, and for the rank that it
        is given, before the state comes. Its collectives reach nobody. ValueError for a rank that the job
        does not have.
        """
        if self._engine is not None:
            self._engine.placing.offer(call, ranks)


class _StepContext(AbstractContextManager[None]):
    def __init__(self, engine: Engine, number: int) -> None:
        self._engine = engine
        self._number = number

    def __enter__(self) -> None:
        self._engine.begin_step(self._number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._engine.end_step(self._number, error)
