"""Stable pseudonyms for hosts, users, paths and addresses, in everything that is written.

Names are learned first, from all that the facts and the answer say; then every string goes through `cover`.
A name keeps its pseudonym for the whole run, so that one report, its page and its trace agree. Numbers of
ranks, PCI addresses of GPUs, and what belongs to public libraries stay readable.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, TypeVar

from paceline.analysis.diagnosis.answer import Diagnosis
from paceline.analysis.facts import Fact, Origin

NAMES_MAX = 200_000
ODD_FILES_MAX = 500
PARTS_MAX = 10  # of one name: gpu-0664.rack.site
_PUBLIC = frozenset((
    "torch", "torchrec", "torchvision", "deepspeed", "megatron", "transformers", "accelerate", "lightning",
    "pytorch_lightning", "ray", "vllm", "sglang", "flash_attn", "nccl", "triton", "numpy", "trl", "verl",
))  # fmt: skip
_SHORT_WORDS = frozenset((
    "an", "as", "at", "be", "by", "do", "gb", "gs", "id", "if", "in", "ib", "is",
    "it", "mb", "ms", "ns", "no", "of", "ok", "on", "or", "pg", "so", "to", "up", "us",
))  # fmt: skip
_NOT_A_USER = frozenset(("root", "user", "users", "home", "shared", "data", "app", "workspace"))
_QUOTED = r"(?<=[\"'])(?:~|\.{1,2})?/[^\"'\n]+(?=[\"'])"  # may hold spaces
_PATH = r"(?<![\w/.-])(?<!:(?=//))(?:~[\w.-]*|\.{1,2})?/[^\s'\"<>|:;,()\[\]{}=`]*[\w/]"
_RELATIVE = r"(?<![\w/.-])(?:[\w.+-]+/)+[\w.+-]*\.[A-Za-z]{1,8}\b"
_V6 = (
    r"(?<![\w:.])(?=(?:[\da-fA-F]*:){3}|[\da-fA-F]*::)"
    r"[\da-fA-F]{0,4}(?::[\da-fA-F]{0,4}){2,7}(?:\.\d{1,3}){0,3}(?![\w:])"
)
_V4 = r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)"
_AT = r"(?<![\w.])(?P<at_user>[\w.+-]{1,64})@(?P<at_host>[\w.-]{1,255}\w)"
_SETTING = re.compile(
    r"\b(?:MASTER_ADDR|HOSTNAME|SLURMD_NODENAME|SLURM_(?:JOB_|STEP_)?NODELIST|rdzv_endpoint|host(?:name)?|node)"
    r"\s*[=:]\s*['\"]?(?P<host>[A-Za-z][\w.-]{1,254}\w)"
)
_URL_HOST = re.compile(r"[a-z][a-z0-9+]{1,9}://(?:[^@/\s]{1,128}@)?(?P<host>[A-Za-z][\w.-]{0,254})")
_HOME = re.compile(r"/(?:home|Users|users|u|scratch|fsx|mnt/home)/(?P<user>[A-Za-z][\w.-]{1,63})(?=/|\b)")
_USER = re.compile(r"\b(?:USER|LOGNAME|user(?:name)?|owner)\s*[=:]\s*['\"]?(?P<user>[A-Za-z][\w.-]{1,63})")
_WORD = r"(?P<token>[A-Za-z0-9_](?:[\w.+/-]*\w)?)"
_ADDRESSED = re.compile(_AT)
Value = TypeVar("Value")


class Redactor:
    """Learn everything, then cover; the order of learning decides the numbers."""

    def __init__(self) -> None:
        self._hosts: dict[str, None] = {}
        self._users: dict[str, None] = {}
        self._files: dict[str, None] = {}
        self._whole: dict[
            str, None
        ] = {}  # hosts that are words: covered only where nothing stands beside them
        self._given: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._scan: re.Pattern[str] | None = None
        self.cover = lru_cache(maxsize=65_536)(self._cover)

    def learn_host(self, host: str) -> None:
        """A host as a fact names it; its short name is learned as well."""
        host = host.strip().strip(".")
        if re.fullmatch(r"[\d.:]*|localhost", host):
            return  # an address is found by its form
        if len(host) < 2 or host.lower() in _SHORT_WORDS:
            self._whole[host] = None
            return
        self._add(self._hosts, host.lower())
        short = host.split(".")[0]
        if len(short) > 2 and not short.isdigit():
            self._add(self._hosts, short.lower())

    def learn_user(self, user: str) -> None:
        if len(user) > 1 and user.lower() not in _NOT_A_USER and not user.isdigit():
            self._add(self._users, user.lower())

    def learn_file(self, name: str) -> None:
        if name not in self._files:
            self._add(self._files, name)
            self.learn_text(f"/{name}")

    def learn_text(self, text: str) -> None:
        """Names that a text gives away by what stands before them."""
        for found in _ADDRESSED.finditer(text):
            self.learn_user(found["at_user"])
            self.learn_host(found["at_host"])
        for pattern in (_SETTING, _URL_HOST):
            for found in pattern.finditer(text):
                self.learn_host(found["host"])
        for pattern in (_HOME, _USER):
            for found in pattern.finditer(text):
                self.learn_user(found["user"])

    def learn_all(self, paths: Iterable[str], facts: Iterable[Fact], diagnosis: Diagnosis | None) -> None:
        """This machine, the paths as given, what the facts and the answer say."""
        self.learn_host(os.uname().nodename)
        self.learn_user(os.environ.get("USER", ""))
        for path in paths:
            if path != "-":
                self.learn_file(path)
        if diagnosis is not None:
            self.learn_diagnosis(diagnosis)
        self.learn_facts(facts)

    def learn_facts(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            if fact.speaker.host:
                self.learn_host(fact.speaker.host)
            self._learn(fact)

    def learn_diagnosis(self, diagnosis: Diagnosis) -> None:
        for root in diagnosis.roots:
            if root.node:
                self.learn_host(root.node)
        self._learn(diagnosis)

    def redact(self, value: Value) -> Value:
        """The same structure with every string covered; enums, numbers and keys stay."""
        return self._walk(value)  # type: ignore[no-any-return]

    def redact_diagnosis(self, diagnosis: Diagnosis) -> Diagnosis:
        """Settings to export are ours: only names are covered in them, so that they still work."""
        covered = self.redact(diagnosis)
        kept = {name: self.cover_names(value) for name, value in diagnosis.export_next.items()}
        return replace(covered, export_next=kept)

    def cover_names(self, text: str) -> str:
        """Known names only; paths and addresses stay."""
        return re.sub(_WORD, lambda found: self._known(found[0]), text)

    def file_name(self, name: str) -> str:
        """`file-3.log` for a file of the input."""
        return self._give("file", name, _suffix(name))

    def _cover(self, text: str) -> str:
        if text in self._files:
            return self.file_name(text)
        if text in self._whole:
            return self._give("host", text.lower())
        return self._compiled().sub(self._replace, text)

    def _replace(self, found: re.Match[str]) -> str:
        kind, text = found.lastgroup, found[0]
        if found["at_user"]:
            return f"{self._give('user', found['at_user'].lower())}@{self._named_host(found['at_host'])}"
        if kind == "url":
            return self._named_host(text)
        if kind == "token":
            return self._known(text)
        if kind == "address":
            return self._give("address", text.lower())
        if text in self._files:
            return self.file_name(text)
        tail = _public_tail(text)
        if tail:
            return f"{self._give('path', text.removesuffix(tail))}/{tail}"
        return self._give("path", text, _suffix(text))

    def _known(self, token: str) -> str:
        """Covers each longest known name among the neighbouring parts of a token."""
        if token in self._files:
            return self.file_name(token)
        parts = re.split(r"([^A-Za-z0-9]+)", token)
        covered: list[str] = []
        at = 0
        while at < len(parts):
            ends = range(min(len(parts), at + 2 * PARTS_MAX), at, -1) if parts[at].isalnum() else range(0)
            end = next((end for end in ends if self._kind("".join(parts[at:end]))), at + 1)
            text = "".join(parts[at:end])
            kind = self._kind(text)
            key = _short(text.lower()) if kind == "host" else text.lower()
            covered.append(self._give(kind, key) if kind else text)
            at = end
        return "".join(covered)

    def _kind(self, text: str) -> str:
        key = text.lower()
        return "host" if key in self._hosts else "user" if key in self._users else ""

    def _named_host(self, host: str) -> str:
        if re.fullmatch(r"[\d.]+", host):
            return self._give("address", host)
        return self._give("host", _short(host.lower()))

    def _give(self, kind: str, original: str, suffix: str = "") -> str:
        key = f"{kind} {original}"
        if key not in self._given:
            number = self._counts.get(kind, 0) + 1
            while self._is_original(f"{kind}-{number}"):
                number += 1
            self._counts[kind] = number
            self._given[key] = f"{kind}-{number}{suffix}"
        return self._given[key]

    def _is_original(self, name: str) -> bool:
        return name in self._hosts or name in self._users

    def _compiled(self) -> re.Pattern[str]:
        """The forms; and files whose names hold blanks or other signs, which no form finds."""
        if self._scan is None:
            odd = sorted(name for name in self._files if not re.fullmatch(r"[\w.+/-]+", name))[:ODD_FILES_MAX]
            files = "|".join(re.escape(name) for name in sorted(odd, key=len, reverse=True)) or r"(?!)"
            self._scan = re.compile(
                rf"{_AT}|(?P<file>{files})|(?<=://)(?P<url>[A-Za-z][\w.-]*)"
                rf"|(?P<path>{_QUOTED}|{_PATH}|{_RELATIVE})|(?P<address>{_V6}|{_V4})|{_WORD}"
            )
        return self._scan

    def _add(self, known: dict[str, None], name: str) -> None:
        if name and name not in known and len(known) < NAMES_MAX:
            known[name] = None
            self._scan = None
            self.cover.cache_clear()

    def _learn(self, value: object) -> None:
        if isinstance(value, Origin):
            self.learn_file(value.file)
        elif isinstance(value, str) and not isinstance(value, Enum):
            if value:
                self.learn_text(value)
        elif is_dataclass(value) and not isinstance(value, type):
            for field in fields(value):
                self._learn(getattr(value, field.name))
        elif isinstance(value, dict):
            for part in value.values():
                self._learn(part)
        elif isinstance(value, (tuple, list)) and not (value and isinstance(value[0], (int, float))):
            for part in value:
                self._learn(part)

    def _walk(self, value: Any) -> Any:
        if isinstance(value, Enum) or value is None or isinstance(value, (int, float)):
            return value
        if isinstance(value, str):
            return self.cover(value)
        if isinstance(value, Origin):
            return replace(value, file=self.file_name(value.file))
        if is_dataclass(value) and not isinstance(value, type):
            changed = {
                field.name: self._walk(getattr(value, field.name)) for field in fields(value) if field.init
            }
            return replace(value, **changed)
        if isinstance(value, dict):
            return {self._walk(key): self._walk(part) for key, part in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._walk(part) for part in value)
        return value


def _short(host: str) -> str:
    """Key of a host: its name with and without domain is one host."""
    return host.split(".")[0]


def _suffix(name: str) -> str:
    suffix = PurePosixPath(name).suffix
    return suffix if re.fullmatch(r"\.(?:py|log|txt|jsonl?|pkl|out|err|gz|so|cpp|cc|h|cu|pt)", suffix) else ""


def _public_tail(path: str) -> str:
    """`torch/nn/modules/module.py` of a path into an installed public library."""
    found = re.search(r"/(?:site|dist)-packages/(?P<tail>(?P<package>\w+)(?:/[\w.-]+)*)$", path)
    return found["tail"] if found and found["package"] in _PUBLIC else ""
