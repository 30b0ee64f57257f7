"""PROCESS rows of all ranks: steps, phases, heartbeats, and what the kernel says of faulty ones."""

import numpy as np

from paceline.contracts.batch import PROCESS_ROW, Rows
from paceline.contracts.codes import ExitKind, HostWait, Phase, ProcessState
from paceline.fleet.engine import Engine
from paceline.fleet.faults import Fault, FaultKind
from paceline.fleet.history import F64, Ints
from paceline.fleet.instant import U32_MAX, Instant, millis


def process_rows(engine: Engine, instant: Instant, now: F64, pids: Ints, pid_starts: Ints) -> Rows:
    """One row per rank at the sample times `now`."""
    topology, at = engine.topology, instant.at.reshape(-1)
    rows = np.zeros(topology.ranks, PROCESS_ROW)
    rows["rank"] = np.arange(topology.ranks)
    rows["pid"], rows["pid_start"] = pids, pid_starts
    issued = sum((view.entered for view in instant.views.values()), np.zeros(instant.at.shape, np.int64))
    if instant.pairs is not None:
        issued = issued + instant.pairs.posted
    rows["issued"] = issued.reshape(-1)
    if engine.profile.completion:
        waited = sum((view.waited_s for view in instant.views.values()), np.zeros(instant.at.shape))
        if instant.pairs is not None:
            waited = waited + instant.pairs.waited_s
        rows["waited_ms"] = millis(waited.reshape(-1))
    rows["cpu_ms"], rows["context_switches"] = millis(at * 0.9), (at * 200).astype(np.uint64) & U32_MAX
    rows["native_age_ms"], rows["python_age_ms"] = (at * 1000 % 100), (at * 1000 % 190)
    rows["host_wait_rank"], rows["phase"] = -1, Phase.TRAIN
    rows["process_state"], rows["communicators"] = ProcessState.SLEEPING, len(topology.kinds)
    steps, since = np.zeros(at.shape, np.int64), np.zeros(at.shape)
    for done, when in reversed(engine.steps):
        newest = (when.reshape(-1) <= at) & (steps == 0)
        steps, since = np.where(newest, done, steps), np.where(newest, when.reshape(-1), since)
        if (steps > 0).all():
            break
    rows["step"], rows["step_age_ms"], rows["phase_age_ms"] = steps, millis(at - since), millis(at)
    for span in engine.phases:
        inside = ((span.enter <= instant.at) & (instant.at < span.leave)).reshape(-1)
        rows["phase"][inside] = span.phase
        rows["phase_age_ms"][inside] = millis(at - span.enter.reshape(-1))[inside]
    for fault in engine.injector.faults:
        _process_fault(rows, fault, now.reshape(-1))
    return rows


def _process_fault(rows: Rows, fault: Fault, at: F64) -> None:
    """What the kernel and the heartbeat say of the rank of a fault."""
    rank = fault.rank
    if fault.kind is FaultKind.BOOTSTRAP:
        others = np.arange(len(rows)) != rank
        rows["phase"], rows["communicators"] = Phase.INIT, 0
        rows["host_wait"][others] = HostWait.BOOTSTRAP
        rows["host_wait_age_ms"][others] = millis(at[others])
        return
    age = float(at[rank]) - fault.at_s
    if age < 0:
        return
    if fault.kind is FaultKind.FROZEN_PROCESS:
        rows["process_state"][rank] = ProcessState.STOPPED
        rows["native_age_ms"][rank] = rows["python_age_ms"][rank] = int(age * 1000)
        rows["cpu_ms"][rank] = int(fault.at_s * 900)
        rows["context_switches"][rank] = int(fault.at_s * 200) & U32_MAX
    elif fault.kind is FaultKind.DEAD_PROCESS:
        rows["process_state"][rank] = ProcessState.GONE
        rows["exit_code"][rank] = fault.exit_code
        rows["exit_kind"][rank] = ExitKind.SIGNAL if fault.exit_code < 0 else ExitKind.ERROR
