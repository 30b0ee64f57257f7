"""Processes that were asked to end from outside (`asked_to_end`), and what DeepSpeed says of a lost one."""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, ProcessEnd, SettingSeen

_TERMINATED = re.compile(
    r"(?:[Rr]eceived|[Cc]aught|[Gg]ot)(?: signal)? ?:?(?:SIGTERM|SIGUSR1|signal 15|signal:? 15)\b"
    r"|SIGTERM (?:received|caught)|[Pp]reemption (?:notice|signal) received"
)
_RETURN = re.compile(r"exits with return code = (?P<code>-?\d{1,3})\b")
_LOCAL = re.compile(r"--local[_-]rank[=' ,]{1,5}(?P<local>\d{1,4})\b")


class AskedToEnd:
    """The process's own line; a launcher that sends the signal to others says nothing of a cause."""

    name = "asked to end"
    needles = ("SIGTERM", "SIGUSR1", "ignal 15", "eemption", "exits with return code")

    def read(self, block: Block) -> Iterator[Fact]:
        text, base = block.line.text[:LOOK_CHARS], base_of(block)
        if found := _RETURN.search(text):
            code = int(found["code"])
            local = _LOCAL.search(text)
            place = int(local["local"]) if local else None
            base["speaker"] = replace(base["speaker"], rank=None, pid=None, local_rank=place)
            words = f"a process ended with return code {code}"
            yield ProcessEnd(
                **base, exit_code=code, signal=-code if code < 0 else None, clean=code == 0, text=words
            )
        elif block.line.speaker.rank is not None and _TERMINATED.search(text):
            yield SettingSeen(**base, name="asked_to_end", value="SIGTERM", text=text.strip()[:300])
