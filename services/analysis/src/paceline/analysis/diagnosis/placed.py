"""Hosts of files that name none: by a folder or file named after a host that other lines know, or by folders
side by side that hold the same file."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from paceline.analysis.facts import (
    DeviceEvent,
    Fact,
    HostKill,
    NetworkFailure,
    NetworkKind,
    SampleRow,
    SettingSeen,
)

HOSTS_MAX = 20_000
_SIBLINGS_MIN = 3
_WORD = re.compile(r"[A-Za-z][\w-]{1,63}(?:\.[\w-]{1,63}){0,4}")
_NO_HOST = re.compile(r"\d+|(?:rank|task|attempt|worker|run|step)[_-]?\d*", re.IGNORECASE)


def placed(facts: Sequence[Fact]) -> list[Fact]:
    """The facts, those of machines with the host that their file's path names."""
    files = {fact.origin.file for fact in facts if _is_homeless(fact)}
    if not files:
        return list(facts)
    hosts = {fact.speaker.host for fact in facts if fact.speaker.host}
    known = {file: _host_in(file, hosts) for file in files} if len(hosts) <= HOSTS_MAX else {}
    beside = _beside(files)
    found: list[Fact] = []
    for fact in facts:
        file = fact.origin.file
        if file in files and _is_homeless(fact) and (host := known.get(file) or beside.get(file, "")):
            fact = replace(fact, speaker=replace(fact.speaker, host=host))
        found.append(fact)
    return found


def _is_homeless(fact: Fact) -> bool:
    """What a machine says, without a word on which one."""
    if fact.speaker.host:
        return False
    port = isinstance(fact, NetworkFailure) and fact.kind is NetworkKind.PORT
    row = isinstance(fact, SampleRow) and fact.kind == "network" and "node" not in fact.words
    return port or row or isinstance(fact, DeviceEvent | HostKill | SettingSeen)


def _host_in(path: str, hosts: set[str]) -> str:
    """The host that a folder is named after, or the file without its endings; empty where none is."""
    for part in reversed(path.split("/")):
        stem = part.split(".")[0]
        names = {part, stem, stem.partition("-")[2], stem.rpartition("-")[0]}
        names |= {*_WORD.findall(part), *(piece for piece in re.split(r"[._]", part) if piece)}
        if both := names & hosts:
            return max(both, key=len)
    return ""


def _beside(files: Iterable[str]) -> dict[str, str]:
    """File: its folder, where several folders of one place hold a file of that name."""
    same: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for file in files:
        place, _, name = file.rpartition("/")
        above, _, folder = place.rpartition("/")
        if folder and not _NO_HOST.fullmatch(folder):
            same[above, name].append((file, folder))
    return {
        file: folder
        for found in same.values()
        if len({folder for _, folder in found}) >= _SIBLINGS_MIN
        for file, folder in found
    }
