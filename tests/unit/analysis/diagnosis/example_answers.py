"""A job of any size in which one rank never entered, as facts and as an answer."""

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Diagnosis, Ground, Seen
from paceline.analysis.diagnosis.picture import Picture, make_picture
from paceline.analysis.facts import (
    Clock,
    DeviceEvent,
    Fact,
    FlightDump,
    Group,
    GroupStatus,
    Origin,
    ProcessFault,
    ProcessFaultKind,
    Speaker,
    Work,
    WorkTimeout,
)
from paceline.analysis.facts.progress import FLIGHT_ENTRY
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)

START_S = 1.79e9


def example_facts(ranks: int, late: int = 5, host: str = "gpu-{:04d}.site.example") -> list[Fact]:
    """Every rank but `late` waits in all_reduce 412; `late` completed 411."""
    group = Group("0", "default_pg", ranks, tuple(range(ranks)))
    facts: list[Fact] = []
    for rank in range(ranks):
        where = Origin(f"logs/{rank}/stderr.log", 12)
        speaker = Speaker(rank=rank, host=host.format(rank // 8))
        entered = 411 if rank == late else 412
        facts.append(GroupStatus(origin=where, speaker=speaker, group=group, enqueued=entered, completed=411))
        if rank != late:
            work = Work("all_reduce", 412, 1 << 20)
            at_s = START_S + 600 + (rank * 37 % 100) / 50
            timeout = WorkTimeout(
                origin=where,
                speaker=speaker,
                time_s=at_s,
                clock=Clock.UNIX,
                group=group,
                work=work,
                ran_ms=600_000,
            )
            facts.append(timeout)
        if rank < 16:
            facts.append(_dump(group, speaker, rank == late))
    facts.append(_crash(late, host.format(late // 8)))
    facts.append(_xid(host.format(late // 8)))
    return facts


def example_diagnosis(ranks: int, late: int = 5, **changes: object) -> Diagnosis:
    victims = tuple(rank for rank in range(min(ranks, 257)) if rank != late)
    fields: dict[str, object] = {
        "verdict_class": VerdictClass.H1,
        "sub_reason": SubReason.MISSING_ENTER,
        "roots": (Blame(RootKind.RANK, rank=late, node="gpu-0000.site.example", why="last enqueued 411"),),
        "victims": victims,
        "communicator": "default_pg",
        "operation": Operation("0", "default_pg", "all_reduce", 412, ranks, "1048576 in"),
        "phase": "",
        "owner": Owner.USER_CODE,
        "action": Action(
            ActionKind.FIX_CODE, f"rank {late}", "its branch skips the call; a restart repeats it"
        ),
        "confidence": 0.9,
        "seen": Seen(
            ranks, ranks, ("torch watchdog", "kernel Xid"), ranks, 1, ("logs/x.gz: damaged or cut",)
        ),
        "grounds": (
            Ground(
                "counts",
                f"rank {late} last enqueued 411, its peers 412; see /home/alice/train.py",
                (Origin(f"logs/{late}/stderr.log", 12), Origin("logs/0/stderr.log", 12)),
            ),
            Ground(
                "order",
                "Xid 13 came 60 s after the stall: teardown",
                (Origin("dmesg.log", 3),),
                supports=False,
            ),
        ),
        "summary": f"rank {late} never entered all_reduce 412 of default_pg, in which {ranks - 1} ranks wait",
    }
    return Diagnosis(**{**fields, **changes})  # type: ignore[arg-type]


def example_picture(ranks: int, late: int = 5) -> Picture:
    return make_picture(
        example_diagnosis(ranks, late), example_facts(ranks, late), lambda fact: fact.speaker.rank
    )


def _dump(group: Group, speaker: Speaker, is_late: bool) -> FlightDump:
    count = 11 if is_late else 12
    entries = np.zeros(count, FLIGHT_ENTRY)
    entries["sequence"] = np.arange(401, 401 + count)
    entries["created_ns"] = entries["started_ns"] = int(START_S * 1e9) + np.arange(count) * 50_000_000
    entries["state"], entries["completed_ns"] = 2, entries["started_ns"] + 20_000_000
    if not is_late:
        entries["state"][-1], entries["completed_ns"][-1] = 1, 0
    origin = Origin(f"fr/rank_{speaker.rank}.json")
    works = (Work("all_reduce", None, 1 << 20),)
    return FlightDump(
        origin=origin, speaker=speaker, version="2.10", groups=(group,), works=works, entries=entries,
        status={"0": (411 if is_late else 412, 412, 411)},
    )  # fmt: skip


def _crash(rank: int, host: str) -> ProcessFault:
    return ProcessFault(
        origin=Origin(f"logs/{rank}/stderr.log", 40),
        speaker=Speaker(rank=rank, host=host),
        time_s=START_S + 30,
        clock=Clock.UNIX,
        kind=ProcessFaultKind.EXCEPTION,
        exception="ValueError",
        text="<b>bad</b> & worse",
    )


def _xid(host: str) -> DeviceEvent:
    return DeviceEvent(
        origin=Origin("dmesg.log", 3), speaker=Speaker(host=host, gpu="0000:9b:00"), time_s=START_S + 660,
        clock=Clock.UNIX, code=13, text="Graphics Exception",
    )  # fmt: skip
