"""Faults of the simulated job: each changes one rank's program or behaviour, and says what is true."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.contracts.codes import DType, ExitKind, Function, ProcessState, ReduceOp
from tests.unit.analysis.simulated_job import SimulatedJob


@dataclass(frozen=True)
class Injection:
    """What was done to the job, and what the judge must answer."""

    job: SimulatedJob
    ranks: tuple[int, ...]
    position: int = 0


def pick(job: SimulatedJob, wanted: Sequence[Function] = (), group: str = "") -> tuple[int, int]:
    """A random rank and a random position in the second half of its program."""
    for _ in range(1000):
        rank = job.random.randrange(job.shape.world)
        calls = job.ranks[rank].program
        position = job.random.randrange(len(calls) // 3, len(calls))
        call = calls[position]
        if (not wanted or call.function in wanted) and call.group.startswith(group):
            return rank, position
    raise AssertionError("no such call in the program")


COLLECTIVES = (Function.ALL_REDUCE, Function.ALL_GATHER, Function.REDUCE_SCATTER)


def inject(kind: str, job: SimulatedJob) -> Injection:
    """Apply fault `kind` to a random rank and run to the end."""
    makers: dict[str, Callable[[SimulatedJob], Injection]] = {
        "none": _none,
        "h1": lambda job: _halt(job, 1),
        "h1x2": lambda job: _halt(job, 2),
        "gil": _gil,
        "h2_op": lambda job: _change(job, function=Function.REDUCE),
        "h2_size": lambda job: _change(job, count=77),
        "h2_dtype": lambda job: _change(job, dtype=DType.FLOAT16),
        "h2_reduce_op": lambda job: _change(job, reduce_op=ReduceOp.MAX),
        "h2_root": _other_root,
        "h2_peer_send": lambda job: _other_peer(job, Function.SEND),
        "h2_peer_recv": lambda job: _other_peer(job, Function.RECV),
        "inversion": _invert,
        "h3": _stick,
        "frozen_inside": _freeze_inside,
        "frozen_outside": _freeze_outside,
        "dead": _kill,
        "p2p_send": lambda job: _skip_pair(job, Function.SEND),
        "p2p_recv": lambda job: _skip_pair(job, Function.RECV),
    }
    return makers[kind](job)


def _none(job: SimulatedJob) -> Injection:
    return Injection(job.run(), ())


def _halt(job: SimulatedJob, count: int) -> Injection:
    ranks: set[int] = set()
    shared = job.random.randrange(len(job.ranks[0].program) // 2, len(job.ranks[0].program) - 1)
    while len(ranks) < count:
        ranks.add(job.random.randrange(job.shape.world))
    for rank in ranks:
        job.ranks[rank].halt_at = min(shared, len(job.ranks[rank].program) - 1)
    job.run()  # a rank that waits for the other one never reaches its own halt
    halted = [rank for rank in sorted(ranks) if job.ranks[rank].halted and not job.ranks[rank].open]
    return Injection(job, tuple(halted))


def _gil(job: SimulatedJob) -> Injection:
    injection = _halt(job, 1)
    job.process[injection.ranks[0]] = {"python_age_ms": 9000, "process_state": ProcessState.RUNNING}
    return injection


def _change(job: SimulatedJob, **fields: object) -> Injection:
    rank, position = pick(job, COLLECTIVES)
    call = job.ranks[rank].program[position]
    job.ranks[rank].program[position] = replace(call, **fields)  # type: ignore[arg-type]
    return Injection(job.run(), (rank,), position)


def _other_root(job: SimulatedJob) -> Injection:
    rank, position = pick(job, (Function.BROADCAST,))
    call = job.ranks[rank].program[position]
    other = job.groups[call.group][1]
    job.ranks[rank].program[position] = replace(call, peer=other)
    return Injection(job.run(), (rank,), position)


def _other_peer(job: SimulatedJob, function: Function) -> Injection:
    """A message to, or from, another stage of the same pipeline than the program says."""
    rank, position = pick(job, (function,))
    call = job.ranks[rank].program[position]
    others = [other for other in job.groups[call.group] if other not in (rank, call.peer)]
    job.ranks[rank].program[position] = replace(call, peer=job.random.choice(others))
    return Injection(job.run(), (rank,), position)


def _invert(job: SimulatedJob) -> Injection:
    """The barrier of the world before the last gradient reduction: a circle with every data group."""
    rank, position = pick(job, (Function.BARRIER,))
    calls = job.ranks[rank].program
    calls[position - 1], calls[position] = calls[position], calls[position - 1]
    return Injection(job.run(), (rank,), position)


def _stick(job: SimulatedJob) -> Injection:
    rank, position = pick(job, COLLECTIVES)
    call = job.ranks[rank].program[position]
    before = [c for c in job.ranks[rank].program[:position] if c.group == call.group and not c.pairwise]
    job.stuck = (call.group, len(before) + 1)
    return Injection(job.run(), tuple(job.groups[call.group]), position)


def _freeze_inside(job: SimulatedJob) -> Injection:
    rank, position = pick(job, COLLECTIVES)
    job.ranks[rank].halt_inside = position
    job.process[rank] = {"native_age_ms": 7000, "python_age_ms": 7000, "process_state": ProcessState.STOPPED}
    return Injection(job.run(), (rank,), position)


def _freeze_outside(job: SimulatedJob) -> Injection:
    injection = _halt(job, 1)
    rank = injection.ranks[0]
    job.process[rank] = {"native_age_ms": 7000, "python_age_ms": 7000, "process_state": ProcessState.STOPPED}
    return injection


def _kill(job: SimulatedJob) -> Injection:
    injection = _halt(job, 1)
    rank = injection.ranks[0]
    job.process[rank] = {
        "exit_kind": ExitKind.SIGNAL,
        "exit_code": -9,
        "process_state": ProcessState.GONE,
    }
    return injection


def _skip_pair(job: SimulatedJob, function: Function) -> Injection:
    rank, position = pick(job, (function,))
    del job.ranks[rank].program[position]
    return Injection(job.run(), (rank,), position)
