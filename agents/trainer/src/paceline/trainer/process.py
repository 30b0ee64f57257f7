"""The one hook of this process, and what the script says to it."""

import atexit
import importlib
import logging
import multiprocessing.util
import os
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from paceline.contracts.codes import Phase
from paceline.trainer.guard import Guard
from paceline.trainer.hook import C10D, Hook
from paceline.trainer.probe import NativeProbe, ProbeFactory
from paceline.trainer.session import EXIT_WAIT_S_MAX, Session
from paceline.trainer.settings import TrainerSettings, read_settings
from paceline.trainer.surroundings import read_surroundings

log = logging.getLogger("paceline")
MESSAGE_CHARACTERS_MAX = 500
PHASES = {
    "init": Phase.INIT,
    "train": Phase.TRAIN,
    "compile": Phase.COMPILE,
    "warmup": Phase.COMPILE,
    "checkpoint": Phase.CHECKPOINT,
    "save": Phase.CHECKPOINT,
    "evaluate": Phase.EVALUATE,
    "evaluation": Phase.EVALUATE,
    "eval": Phase.EVALUATE,
    "validation": Phase.EVALUATE,
    "validate": Phase.EVALUATE,
    "data": Phase.DATA,
    "finish": Phase.FINISH,
}


class Process:
    """State of one training process; made once, by the autoload entry point or by `attach`."""

    def __init__(self, settings: TrainerSettings, probe: ProbeFactory) -> None:
        self.settings = settings
        self.probe = probe
        self.hook: Hook | None = None
        self.steps = 0
        self._declares_steps = False
        self._leader: weakref.ref[Any] | None = None
        self._ended = False
        self._phases: list[tuple[Phase, str]] = []

    @property
    def session(self) -> Session | None:
        """The open session, None before the first process group and after an internal error."""
        hook = self.hook
        if hook is None or hook.session is None or hook.session.guard.off:
            return None
        return hook.session

    def install(self) -> bool:
        """Put the hook into torch.distributed; False where torch has none or it is in already."""
        if self.settings.disabled or self.hook is not None:
            return False
        for warning in self.settings.warnings:
            log.warning("%s", warning)
        torch = sys.modules.get("torch") or importlib.import_module("torch")
        c10d = importlib.import_module(C10D)
        hook = Hook(torch, c10d, self._open_session, self.settings.hook, Guard())
        if not hook.install():
            log.warning("paceline found no seam in torch.distributed; training goes on unobserved")
            return False
        self.hook = hook
        if c10d.is_initialized():
            log.warning(
                "paceline was attached after init_process_group: groups made before stay unobserved, and a "
                "hang in them is not named; call attach() first"
            )
        self._watch_optimizers()
        atexit.register(self._at_exit)
        os.register_at_fork(after_in_child=self._in_child)
        return True

    def _open_session(self, init_method: str) -> Session | None:
        torch = sys.modules.get("torch")
        around = read_surroundings(init_method)
        version = str(getattr(torch, "__version__", ""))
        # A forked child of multiprocessing ends without atexit; negative: after its own children.
        multiprocessing.util.Finalize(None, self._at_exit, exitpriority=-100)
        self._ended = False
        try:
            return Session(self.settings, os.environ, self.probe, around, version)
        except (OSError, ImportError) as error:
            log.warning("paceline cannot observe this process (%s); training goes on", error)
            if self.hook is not None:
                self.hook.guard.off = True
            return None

    def _watch_optimizers(self) -> None:
        optimizer = importlib.import_module("torch.optim.optimizer")
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is not None:
            register(self._after_optimizer)

    def _after_optimizer(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        """One step per turn of the first optimizer: a script with two still makes one step."""
        if self._declares_steps or self.session is None:
            return
        leader = self._leader() if self._leader is not None else None
        if leader is None:
            leader = optimizer
            self._leader = weakref.ref(optimizer)
        if leader is optimizer:
            self._count_step()

    def _count_step(self) -> None:
        self.steps += 1
        session = self.session
        if session is not None:
            session.guard.attempt("step", lambda: session.page.set_step(self.steps))

    def step(self, number: int | None) -> None:
        """The script ends a step itself; from now on optimizers are not counted."""
        self._declares_steps = True
        if isinstance(number, int):  # whatever else a script passes counts as the next step
            self.steps = number - 1
        self._count_step()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The phase `name` inside, the one before afterwards; phases nest."""
        entry = (PHASES.get(name.lower(), Phase.UNKNOWN), name)
        self._phases.append(entry)
        self._show_phase(*entry)
        try:
            yield
        finally:
            if entry in self._phases:
                self._phases.remove(entry)
            self._show_phase(*(self._phases[-1] if self._phases else (Phase.TRAIN, "train")))

    def _show_phase(self, phase: Phase, name: str) -> None:
        session = self.session
        if session is not None:
            session.guard.attempt("phase", lambda: session.page.set_phase(int(phase), name))

    def declare(self, job_id: str | None, name: str | None, coordinates: Mapping[str, int] | None) -> None:
        """What `attach` was told: before the first group all of it, later name and coordinates."""
        self.settings = replace(
            self.settings,
            job_id=job_id or self.settings.job_id,
            name=name or self.settings.name,
            coordinates=dict(coordinates) if coordinates else self.settings.coordinates,
        )
        session = self.session
        if session is not None:
            if job_id and job_id != session.hello.job:
                log.warning(
                    "attach(job_id=%r) came after the first process group; it stays %r",
                    job_id,
                    session.hello.job,
                )
            session.guard.attempt("declare", lambda: session.declare(name, coordinates))

    def _at_exit(self) -> None:
        session = self.hook.session if self.hook is not None else None
        if session is None or self._ended or os.getpid() != session.hello.pid:
            return
        self._ended = True
        try:
            session.await_followed(EXIT_WAIT_S_MAX, time.sleep)
        except KeyboardInterrupt:
            log.debug("interrupted while operations were in flight")
        # Set by the interpreter when it has printed an uncaught exception; SystemExit leaves no
        # trace: the agent says "finished" only where the kernel tells it a status of 0.
        error = getattr(sys, "last_value", None)
        reason, message = "finished", ""
        if error is not None:
            reason, message = "error", f"{type(error).__name__}: {error}"[:MESSAGE_CHARACTERS_MAX]
        session.guard.attempt("finish", lambda: session.finish(reason, message))

    def remove(self) -> None:
        """End the session and give torch its own functions back."""
        self._at_exit()
        atexit.unregister(self._at_exit)
        if self.hook is not None:
            self.hook.uninstall()
            self.hook.guard.off = True
            if self.hook.session is not None:
                self.hook.session.guard.off = True

    def _in_child(self) -> None:
        """A forked child owns no page of its parent; it may open its own."""
        if self.hook is not None:
            self.hook.forget_session()


_process: Process | None = None


def current() -> Process | None:
    """The process state, None where Paceline was not asked for."""
    return _process


def install(probe: ProbeFactory | None = None) -> Process:
    """Make the process state and install the hook; the same object at every later call."""
    global _process
    if _process is None:
        _process = Process(read_settings(os.environ), probe or NativeProbe())
        _process.install()
    return _process
