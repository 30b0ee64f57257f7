"""How far a job says it is: progress bars, iteration, step and epoch lines of any framework.

Read are tqdm's bars (several on one line as well: carriage returns may be lost), rich's, and lines such as
`iteration 12/ 500 | elapsed time per iteration (ms): 411.2` (Megatron, NeoX, NeMo), `steps: 10 loss: .. iter
time (s): .5` and `global_step=10` (DeepSpeed), `step: 10  loss: ..` (torchtitan), `iter 10: loss .., time
250ms` (nanoGPT), `completed step: 10, seconds: 1.2` (MaxText), `[batch=20/4800]` (Composer), `Epoch: [0]
[ 10/100] .. time: 0.5` (torchvision, timm, mmengine).
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import Block, base_of
from paceline.analysis.facts import Fact, ProgressSeen

_BARS_MAX = 16  # on one line
_LOOK_CHARS = 400  # of a line: numbers further on are metrics
_BAR = re.compile(
    r"(?P<what>[^|\r\n]{0,80}?):?\s{0,2}\d{1,3}%(?:\|[^|]{0,200}| Completed "
    r")\|\s*(?P<done>[\d.]{1,12}[kMG]?)/(?P<total>[\d.]{1,12}[kMG]?) "
    r"\[[\d:]+<[\d:?]+(?:,\s*(?P<rate>\d{1,18}(?:\.\d{1,18})?|\?)\s?(?P<unit>s/\w+|\w+/s))?"
)
_RICH = re.compile(
    r"(?P<what>[\w /:.-]{0,80}?)\s{0,2}[━╸╺─]{3}[━╸╺─ ]{0,300}\s{0,2}(?P<done>\d{1,18})/(?P<total>\d{1,18})"
    r"\s+[\d:]+(?:\s*•\s*[-\d:]+)?"
    r"(?:\s+(?P<rate>\d{1,18}(?:\.\d{1,18})?)\s?(?P<unit>s/it|it/s))?"
)
_GAP = re.compile(r"[^\S\r\n]{3,}")  # as two blanks: a bar behind a long one would be tried at each of them
_OPEN = re.compile(
    r"(?<![\d/])(?P<done>\d{1,12})it \[[\d:]+,\s*(?P<rate>\d{1,18}(?:\.\d{1,18})?)\s?(?P<unit>s/it|it/s)"
)
_STEP = re.compile(
    r"(?<![\w/.-])(?P<front>(?:[a-z]+[ _])?)(?P<what>global[_ ]?step|iteration|iter|step"
    r"|batch)\b\s*[:=#]?\s*\[?\s*"
    r"(?P<done>\d{1,12})(?![\d.]*[a-z%]|\d|\.\d)(?:\s*(?:/|of)\s*(?P<total>\d{1,12}))?",
    re.IGNORECASE,
)
_STEPS = re.compile(r"\bsteps\s*[:=]\s*(?P<done>\d{1,12}),?\s+loss\b", re.IGNORECASE)
_OTHER_STEPS = (
    "max total num warmup save eval accumulation per each every logging micro best last first mini "
    "skip until ckpt"
)
_NOT_PROGRESS = frozenset(_OTHER_STEPS.split())
_INDEXED = re.compile(
    r"(?:\bepoch\b[^\[\]]{0,12}\b\d{1,18}|\bepoch\b[^\[\]]{0,12}"
    r"|"
    r"\[\s*\d{1,18}\s*(?:/\s*\d{1,18})?\])\s*\[\s*(?P<done>\d{1,18})\s*/\s*(?P<total>\d{1,18})(?:\s*\(\s*\d{1,18}%\))?\]",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"\bepoch\b\s*[:=#]?\s*\[?\s*(?P<done>\d{1,9})(?![\d.])(?:\s*(?:/|of)\s*(?P<total>\d{1,9}))?",
    re.IGNORECASE,
)
_TIME = re.compile(
    r"(?:elapsed time per (?:iteration|step)|\b(?:iter|iteration|step|batch|train_step)[ _]?(?:time"
    r"|timing|duration)"
    r"|time per (?:iteration|iter|step|batch)|time/(?:iter|step)|\bseconds|(?<!start )(?<!end )\btime)\s*"
    r"(?:\((?P<before>ms|s|sec|seconds)\)|in (?P<inside>ms|s))?\s*[:=]?\s*"
    r"(?P<value>\d{1,18}(?:\.\d{1,18})?)\s?(?P<after>ms|s|sec|seconds)?(?![\w:])",
    re.IGNORECASE,
)


class Progress:
    """Bars and step lines; at most one fact for each bar, one for each other line."""

    name = "progress"
    needles = (
        "%|",
        "it/s",
        "s/it",
        "teration",
        "tep",
        "iter",
        "poch",
        "batch",
        "Batch",
        "ITER",
        "STEP",
        "EPOCH",
    )

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text
        if text.lstrip()[:1] in ("{", "[") and '"' in text[:8]:
            return  # a row
        bars = list(_bars(text))
        for done, total, what, seconds in bars:
            yield ProgressSeen(**base_of(block), done=done, total=total, what=what, step_s=seconds)
        if not bars:
            yield from _counted(block, text[:_LOOK_CHARS])


def _counted(block: Block, text: str) -> Iterator[Fact]:
    if text.lstrip().startswith('File "') or "srun: " in text or "slurmstepd: " in text or "(factor)" in text:
        return
    found = _step(text)
    what = "iteration"
    if found is None:
        found, what = _EPOCH.search(text), "epoch"
    if found is None:
        return
    groups = found.groupdict()
    yield ProgressSeen(
        **base_of(block),
        done=int(found["done"]),
        total=int(groups["total"]) if groups.get("total") else None,
        what=what,
        step_s=_seconds(text) if what == "iteration" else None,
    )


def step_number(text: str) -> int | None:
    """The step or iteration that a line names, None where none."""
    found = _step(text[:_LOOK_CHARS])
    return int(found["done"]) if found else None


def _step(text: str) -> re.Match[str] | None:
    """The number of the step: a global step first, then one with a total, then the first."""
    if found := _INDEXED.search(text) or _STEPS.search(text):
        return found
    matches = [one for one in _STEP.finditer(text) if one["front"].strip(" _").lower() not in _NOT_PROGRESS][
        :_BARS_MAX
    ]
    if not matches:
        return None
    return min(matches, key=lambda one: ("global" not in one[0].lower(), not one["total"], one.start()))


def _bars(text: str) -> Iterator[tuple[int, int | None, str, float | None]]:
    if "%|" in text or "% Completed |" in text:
        pattern = _BAR
    elif "━" in text:
        pattern = _RICH
    elif "it [" in text:
        pattern = _OPEN
    else:
        return
    for count, found in enumerate(pattern.finditer(_GAP.sub("  ", text))):
        if count >= _BARS_MAX:
            return
        groups = found.groupdict()
        done, total = _scaled(found["done"]), _scaled(groups.get("total") or "")
        if done is not None:
            what = re.sub(r"^.*[\]\r]", "", groups.get("what") or "").strip(" :")
            yield done, total, what, _of_rate(groups.get("rate"), groups.get("unit"))


def _scaled(text: str) -> int | None:
    """`1.5k` is 1500."""
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:], 1.0)
    try:
        return int(float(text.rstrip("kMG")) * factor)
    except ValueError:
        return None


def _of_rate(rate: str | None, unit: str | None) -> float | None:
    if not rate or rate == "?" or not unit:
        return None
    value = float(rate)
    if unit.startswith("s/"):
        return value
    return 1.0 / value if value > 0 else None


def _seconds(text: str) -> float | None:
    found = _TIME.search(text)
    if not found:
        return None
    unit = (found["before"] or found["inside"] or found["after"] or "s").lower()
    return float(found["value"]) * (1e-3 if unit == "ms" else 1.0)
