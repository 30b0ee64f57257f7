"""`ncclras` as text, 2.24 to 2.32, and its monitor mode.

Counts are host-side launches of five functions; sends, receives and graph replays are not counted. The text
names the minority, which may be the ranks that are ahead; the others are `ranks_alike`. Rank numbers are
those of the communicator. Data that was not obtained is no count: `missing` says why.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.model import Block, base_of
from paceline.analysis.adapters.torch_reports import ranks_of
from paceline.analysis.facts import (
    Counted,
    Fact,
    Group,
    Membership,
    NetworkFailure,
    NetworkKind,
    ProcessFault,
    ProcessFaultKind,
    Speaker,
)

_SNAPSHOTS = count(1)
GROUPS_MAX = 4096  # rows of the summary table that are remembered for the sizes
_PROCESS = re.compile(
    r"Process (?P<pid>\d{1,9}) on node (?P<host>\S{1,255}) managing GPUs? (?P<gpus>[\d, ]{1,300})"
    r"(?P<nvml>\(NVML)?"
)
_RANK = re.compile(
    r"^\s*Rank (?P<rank>\d{1,8})"
    r"(?: has launched up to operation (?P<count>\d{1,18})| (?P<none>has not launched any operations)|"
    r" has status (?P<status>[A-Z]+)| reported (?P<error>[\w ]{1,60}?)(?= -- |\s*$))?"
    r"(?: -- (?:GPUs? (?P<gpu>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))? managed by process (?P<pid>\d{1,9})"
    r" on node (?P<host>\S{1,255})|\[process))?"
)
_MANY = re.compile(
    r"^\s*(?P<many>\d{1,8}) ranks? (?:have launched up to operation (?P<count>\d{1,18})|"
    r"(?P<none>have not launched any operations)|have status (?P<status>[A-Z]+)|"
    r"reported (?P<error>[\w ]{1,60}))"
)
_COMM = re.compile(
    r"^#(?P<group>\d{1,6})-(?P<index>\d{1,6}) \((?P<hash>[\da-fA-F]{1,16})\) "
    r"(?P<what>MISMATCH|INCOMPLETE|ERROR)"
)
_DIFFERENT = re.compile(
    r"Communicator ranks have different (?P<what>\w{1,40})(?: operation counts| operation| status)?"
)
_SUMMARY = re.compile(
    r"^ {1,5}(?P<group>\d{1,5}) +\d{1,8} +\d{1,8} +[\d-]{1,17} +(?P<size>\d{1,8}) +\d{1,8} +"
    r"[A-Z,]{1,60} +[A-Z,]{1,60}\s*$"
)
_MISSING_RANKS = re.compile(r"^\s*The (?:missing|unknown) ranks?: (?P<ranks>[\d, -]{1,4000})")
_MISSING_MANY = re.compile(
    r"^\s*Missing communicator data from (?P<many>\d{1,8}) (?P<what>ranks?|job process)"
)
_EVENT = re.compile(r"^\s*(?P<event>PEER_[A-Z_]{2,30}): ?(?P<rest>.{0,600})")
LOST = {
    "PEER_DEAD": "dead",
    "PEER_TIMEOUT_DEAD": "dead",
    "PEER_UNRESPONSIVE": "unresponsive",
    "PEER_SEND_STUCK": "unresponsive",
    "PEER_KEEPALIVE_TIMEOUT": "unresponsive",
    "PEER_INIT_TIMEOUT": "unresponsive",
    "PEER_DISCONNECTED": "unresponsive",
}
COMPLETE = {"RUNNING": True, "FINALIZE": True, "ABORT": True, "INIT": False}


class RasText:
    """Answers to STATUS and VERBOSE STATUS, several in one file, also inside another log."""

    name = "nccl ras"
    needles = (
        "launched up to operation", "launched any operations", "have different ", " MISMATCH", " INCOMPLETE",
        " ERROR", " OK", "INCOMPLETE", "DEAD", "TIMEOUT", "Missing communicator data", "The missing rank",
        "The unknown rank", "managed by process", "managing GPU", "have status ", "has status ", "reported ",
        "compiled with CUDA", "PEER_", "-- [process information not found]",
    )  # fmt: skip

    def __init__(self) -> None:
        self._forget("")

    def _forget(self, file: str) -> None:
        self._file, self._line = file, 0
        self._snapshot = next_snapshot()
        self._sizes: dict[int, int] = {}
        self._new_section()

    def _new_section(self) -> None:
        self._group = Group()
        self._function = ""
        self._section = ""  # "counts", "status", "error", "missing", "DEAD", "INCOMPLETE"
        self._value: str = ""  # count or word that the ranks listed below share

    def read(self, block: Block) -> Iterator[Fact]:
        origin, text = block.line.origin, block.line.text
        if origin.file != self._file or origin.line < self._line:
            self._forget(origin.file)
        self._line = origin.line
        if "compiled with CUDA" in text and "NCCL version" in text:
            self._snapshot = next_snapshot()
            self._sizes.clear()
            self._new_section()
        elif found := _SUMMARY.match(text):
            if len(self._sizes) < GROUPS_MAX:
                self._sizes[int(found["group"])] = int(found["size"])
        elif found := _EVENT.match(text):
            yield from self._event(block, found["event"], found["rest"])
        elif not self._heading(text):
            yield from self._body(block, text)

    def _heading(self, text: str) -> bool:
        """Takes notice of the section that begins here."""
        if found := _COMM.match(text):
            self._new_section()
            size = self._sizes.get(int(found["group"]), 0)
            self._group = Group(name=f"0x{found['hash'].lower().lstrip('0') or '0'}", size=size)
            self._section = {"INCOMPLETE": "missing", "ERROR": "error"}.get(found["what"], "")
        elif text.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT", "Warnings", "Errors"):
            self._new_section()
            self._section = text.strip()
        elif found := _DIFFERENT.search(text):
            what = found["what"]
            self._section = "status" if what == "status" else "counts"
            self._function = "" if what in ("status", "collective") else function_of(what)
            self._value = ""
        else:
            return False
        return True

    def _body(self, block: Block, text: str) -> Iterator[Fact]:
        if found := _PROCESS.search(text):
            missing = {"DEAD": "dead", "INCOMPLETE": "unresponsive"}.get(self._section)
            if missing:
                yield self._counted(block, speaker_of_process(block.line.speaker, found), missing=missing)
        elif found := _MISSING_RANKS.match(text):
            for rank in ranks_of(found["ranks"]):
                speaker = replace(block.line.speaker, rank=None, group_rank=rank)
                yield self._counted(block, speaker, missing="no_data")
        elif found := _MISSING_MANY.match(text):
            named = any(
                _RANK.match(line.text) or _MISSING_RANKS.match(line.text) for line in list(block.after)[:1]
            )
            if not named and found["what"] != "job process":
                nobody = replace(block.line.speaker, rank=None)
                yield self._counted(block, nobody, missing="no_data", ranks_alike=int(found["many"]))
        elif found := _MANY.match(text):
            yield from self._many(block, found)
        elif found := _RANK.match(text):
            yield from self._one(block, found)

    def _many(self, block: Block, found: re.Match[str]) -> Iterator[Fact]:
        """A line about several ranks; a fact only where the text does not go on to name them."""
        self._value = found["count"] or (
            "0" if found["none"] else found["status"] or (found["error"] or "").strip()
        )
        following = block.after[0].text if block.after else ""
        named = _RANK.match(following)
        if named and not any(named[word] for word in ("count", "none", "status", "error")):
            return
        if found["count"] or found["none"]:
            nobody = replace(block.line.speaker, rank=None)
            yield self._counted(block, nobody, launched=int(self._value), ranks_alike=int(found["many"]))

    def _one(self, block: Block, found: re.Match[str]) -> Iterator[Fact]:
        speaker = replace(
            block.line.speaker,
            rank=None,
            group_rank=int(found["rank"]),
            host=found["host"] or block.line.speaker.host,
            pid=int(found["pid"]) if found["pid"] else block.line.speaker.pid,
            local_rank=int(found["gpu"]) if found["gpu"] and not found["nvml"] else None,
        )
        if found["count"] or found["none"]:
            yield self._counted(block, speaker, launched=int(found["count"] or 0))
        elif found["status"] or self._section == "status":
            yield self._standing(block, speaker, found["status"] or self._value)
        elif found["error"] or self._section == "error":
            yield from error_fact(base_of(block, speaker), (found["error"] or self._value).strip())
        elif self._section == "missing":
            yield self._counted(block, speaker, missing="no_data")
        elif self._section == "counts" and self._value.isdecimal():
            yield self._counted(block, speaker, launched=int(self._value))

    def _standing(self, block: Block, speaker: Speaker, status: str) -> Fact:
        return Membership(
            **base_of(block, speaker),
            group=self._group,
            rank_in_group=speaker.group_rank,
            complete=COMPLETE.get(status),
            stage="" if status == "RUNNING" else status.lower(),
        )

    def _event(self, block: Block, event: str, rest: str) -> Iterator[Fact]:
        """Monitor mode: a process that is lost (and, where it is heard of again, nothing)."""
        if (missing := LOST.get(event)) is None:
            return
        found = _PROCESS.search(rest)
        speaker = speaker_of_process(block.line.speaker, found) if found else None
        if speaker is None and (address := re.match(r"([\w.:%-]{1,64}?)<\d{1,5}>", rest)):
            speaker = replace(block.line.speaker, rank=None, host=address[1])
        if speaker is not None:
            yield Counted(**base_of(block, speaker), group=Group(), missing=missing, snapshot=next_snapshot())

    def _counted(self, block: Block, speaker: Speaker, **values: Any) -> Fact:
        return Counted(
            **base_of(block, speaker),
            group=self._group,
            function=self._function if "launched" in values else "",
            snapshot=self._snapshot,
            **values,
        )


def next_snapshot() -> int:
    """A number that only answers of one query share; it grows in the order of reading."""
    return next(_SNAPSHOTS)


def speaker_of_process(speaker: Speaker, found: re.Match[str]) -> Speaker:
    """The process that `Process P on node H managing GPU g` names."""
    gpus = found["gpus"].strip()
    alone = gpus.isdecimal() and len(gpus) < 5 and not found["nvml"]
    return replace(
        speaker,
        rank=None,
        host=found["host"],
        pid=int(found["pid"]),
        local_rank=int(gpus) if alone else None,
    )


def error_fact(base: dict[str, Any], error: str) -> Iterator[Fact]:
    """NCCL's result of one rank: a remote error is somebody else's, the others are its own."""
    if not error or error == "NCCL operation in progress":
        return
    if error == "Remote process error":
        yield NetworkFailure(**base, kind=NetworkKind.CLOSED, text=error)
    else:
        kind = ProcessFaultKind.CUDA_OTHER if "CUDA" in error else ProcessFaultKind.EXCEPTION
        yield ProcessFault(**base, kind=kind, exception="ncclError", text=error)
