"""`ncclras -f json` (2.28.7 and later) and its monitor mode. 2.28 forgets commas; such a text is repaired."""

import re
from calendar import timegm
from collections.abc import Iterator
from time import strptime
from typing import Any

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.model import Document
from paceline.analysis.adapters.nccl_ras import COMPLETE, LOST, error_fact, next_snapshot
from paceline.analysis.adapters.repaired_json import integer, load_repaired, objects_of, word
from paceline.analysis.facts import Clock, Counted, Fact, Group, Membership, Origin, SettingSeen, Speaker

_HEAD = 1 << 16
_ERRORS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
    8: "Timeout",
}
_IN_PROGRESS = 7


class RasJson:
    """One answer, or the events of monitor mode one after the other."""

    name = "nccl ras json"

    def recognise(self, document: Document) -> bool:
        head = document.content[:_HEAD]
        if b"{" not in head[:4096]:
            return False
        answer = b'"communicators"' in head and (b'"nccl_version"' in head or b'"missing_ranks' in head)
        return answer or (b'"PEER_' in head and b'"event"' in head)

    def read(self, document: Document) -> Iterator[Fact]:
        text = document.content.decode("utf-8", "replace")
        if '"communicators"' not in text:
            yield from _events(document.name, text)
            return
        starts = [found.start() for found in re.finditer(r'\{\s*"nccl_version"', text)][:4096] or [0]
        for index, start in enumerate(starts):
            end = starts[index + 1] if index + 1 < len(starts) else len(text)
            answer = load_repaired(text[start:end])
            if isinstance(answer, dict):
                yield from _answer(document.name, answer)


def _answer(name: str, answer: dict[str, Any]) -> Iterator[Fact]:
    time_s = _seconds(answer.get("timestamp"))
    base: dict[str, Any] = {"time_s": time_s, "clock": Clock.NONE if time_s is None else Clock.UNIX}
    if version := word(answer.get("nccl_version"), 40):
        yield SettingSeen(origin=Origin(name), name="nccl_version", value=version, **base)
    snapshot = next_snapshot()
    for number, communicator in enumerate(_dicts(answer.get("communicators")), 1):
        yield from _communicator(communicator, {"origin": Origin(name, number), **base}, snapshot)


def _communicator(communicator: dict[str, Any], base: dict[str, Any], snapshot: int) -> Iterator[Fact]:
    digits = word(communicator.get("hash"), 20).lower().removeprefix("0x").lstrip("0")
    group = Group(name=f"0x{digits or '0'}", size=max(0, integer(communicator.get("size")) or 0))
    ranks = _dicts(communicator.get("ranks"))
    used = [name for name in _functions(ranks) if any(_count(rank, name) for rank in ranks)]
    for rank in ranks:
        mine = {**base, "speaker": _speaker(rank)}
        yield from _standing(rank, mine, group)
        counts = rank.get("collective_counts")
        if not isinstance(counts, dict):
            continue
        if not used:
            yield Counted(**mine, group=group, launched=0, snapshot=snapshot)
        for name in used:
            if (count := _count(rank, name)) is not None:
                yield Counted(
                    **mine, group=group, function=function_of(name), launched=count, snapshot=snapshot
                )
    for rank in _dicts(communicator.get("missing_ranks")):
        status = rank.get("status")
        status = status if isinstance(status, dict) else {}
        missing = "dead" if status.get("considered_dead") is True else ""
        missing = missing or ("unresponsive" if status.get("unresponsive") is True else "no_data")
        yield Counted(**base, speaker=_speaker(rank), group=group, missing=missing, snapshot=snapshot)


def _standing(rank: dict[str, Any], base: dict[str, Any], group: Group) -> Iterator[Fact]:
    status = rank.get("status")
    status = status if isinstance(status, dict) else {}
    state = integer(status.get("init_state"))
    words = [
        name
        for key, name in (
            ("abort_flag", "abort"),
            ("destroy_flag", "destroy"),
            ("finalize_called", "finalize"),
        )
        if status.get(key) is True
    ]
    initialising = state == _IN_PROGRESS
    yield Membership(
        **base,
        group=group,
        rank_in_group=integer(rank.get("rank")),
        complete=COMPLETE["INIT"] if initialising else state == 0 if state is not None else None,
        stage="init" if initialising else words[0] if words else "",
    )
    for key in ("init_state", "async_error"):
        if error := _ERRORS.get(integer(status.get(key)) or 0):
            yield from error_fact(base, error)


def _events(name: str, text: str) -> Iterator[Fact]:
    for number, event in enumerate(objects_of(text), 1):
        missing = LOST.get(word(event.get("event"), 40))
        peer = event.get("peer")
        if missing is None or not isinstance(peer, dict):
            continue
        devices = peer.get("cuda_devs")
        alone = devices[0] if isinstance(devices, list) and len(devices) == 1 else None
        host = word(peer.get("host")) or word(peer.get("addr")).partition("<")[0]
        time_s = _seconds(event.get("timestamp"))
        yield Counted(
            origin=Origin(name, number),
            speaker=Speaker(host=host, pid=integer(peer.get("pid")), local_rank=integer(alone)),
            time_s=time_s,
            clock=Clock.NONE if time_s is None else Clock.UNIX,
            group=Group(),
            missing=missing,
        )


def _speaker(rank: dict[str, Any]) -> Speaker:
    cuda, nvml = integer(rank.get("cuda_dev")), integer(rank.get("nvml_dev"))
    return Speaker(
        group_rank=integer(rank.get("rank")),
        host=word(rank.get("host")),
        pid=integer(rank.get("pid")),
        local_rank=cuda if nvml is None or cuda == nvml else None,  # only the visible one was given
    )


def _functions(ranks: list[dict[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for rank in ranks:
        counts = rank.get("collective_counts")
        if isinstance(counts, dict) and len(names) < 64:
            names.update(dict.fromkeys(list(counts)[:64]))
    return list(names)


def _count(rank: dict[str, Any], name: str) -> int | None:
    counts = rank.get("collective_counts")
    return integer(counts.get(name)) if isinstance(counts, dict) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _seconds(value: Any) -> float | None:
    try:
        return float(timegm(strptime(word(value, 40), "%Y-%m-%d %H:%M:%S")))
    except (ValueError, OverflowError):
        return None
