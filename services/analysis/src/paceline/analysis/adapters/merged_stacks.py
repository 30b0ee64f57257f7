"""Stacks that a tool has merged: `ranks 0-12,14-63: all_reduce (c10d.py:2501) <- step (opt.py:40)`."""

import re
from collections.abc import Iterator
from dataclasses import replace

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.adapters.torch_reports import ranks_of
from paceline.analysis.facts import Fact, StackSeen

FRAMES_MAX = 60
_LINE = re.compile(
    r"^\W{0,4}(?:global )?ranks?[ :]{1,2}\[?(?P<ranks>\d{1,7}(?:[-,] ?\d{1,7}){0,400})\]?"
    r"\s{0,4}[:|]\s{1,4}(?P<frames>\S.{0,4000})"
)
_FRAME = re.compile(r"^(?P<name>[\w.<>]{1,160}) ?\((?P<place>[^()]{1,200}:\d{1,7})\)$")
_BETWEEN = re.compile(r"\s{0,8}(?:<-|;|\|)\s{0,8}")


class MergedStacks:
    """One stack for each rank of the line; innermost frame first."""

    name = "merged stacks"
    needles = ("anks ", "ank ", "<-")

    def read(self, block: Block) -> Iterator[Fact]:
        text, spoken = block.line.text[:LOOK_CHARS], block.line.speaker.rank
        found = _LINE.match(text)
        if not found and (spoken is None or "<-" not in text):
            return  # `rank 13: ...` alone was read as a prefix
        words = found["frames"] if found else text
        ranks = ranks_of(found["ranks"]) if found else [spoken]
        frames = []
        for part in _BETWEEN.split(words.strip())[:FRAMES_MAX]:
            frame = _FRAME.match(part)
            if not frame:
                return
            frames.append(f"{frame['name']} ({frame['place']})")
        base = base_of(block)
        for rank in ranks:
            speaker = replace(base["speaker"], rank=rank, pid=None)
            yield StackSeen(**{**base, "speaker": speaker}, frames=tuple(frames), thread="MainThread")
