"""What a job says that it does besides training: checkpoints, evaluation, data, compilation, loading.

By the verbs that frameworks have in common, not by one framework's sentence. Known to be covered: Megatron
and NeMo, DeepSpeed, Lightning, Hugging Face Trainer and datasets, torchtitan, Composer, vLLM, SGLang, verl.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.analysis.adapters.model import Block, base_of
from paceline.analysis.facts import Fact, PhaseKind, PhaseSeen

_LOOK_CHARS = 400
_NOT = re.compile(
    r"watchdog|WorkNCCL|NCCL (?:INFO|WARN)|\bfail(?:ed|ure)?\b|\berror\b|exception|traceback|^\s*File "
    r"\"|will be saved|deprecat",
    re.IGNORECASE,
)
_DURATION = re.compile(
    r"(?:\btook|\btakes|\bin|\bafter|\btime|\bduration|\belapsed|_runtime'|collection)\s*(?:\((?:s|sec"
    r"|seconds)\))?\s*[:=]?\s*"
    r"(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|secs?|seconds|mins?|minutes)?(?!\w|\.\d|%)",
    re.IGNORECASE,
)
_SECONDS_NAMED = re.compile(r"\((?:s|seconds)\)\s*[:=]\s*(?P<value>\d+(?:\.\d+)?)")
_BAR_WORDS = re.compile(r"(?<=\d)% Completed\b")  # of a bar, whatever it shows
_AND_SECONDS = re.compile(r"\band (?P<value>\d+(?:\.\d+)?) (?:s|secs?|seconds)\b")


@dataclass(frozen=True)
class _Kind:
    """`about` has to be in the line, then `end` is tried before `begin`."""

    kind: PhaseKind
    about: re.Pattern[str]
    begin: re.Pattern[str]
    end: re.Pattern[str]


def _kind(kind: PhaseKind, about: str, begin: str, end: str) -> _Kind:
    return _Kind(kind, *(re.compile(pattern, re.IGNORECASE) for pattern in (about, begin, end)))


_DONE = r"(?:done|finished|complete|completed|ended|took|passed)"
_KINDS = (
    _kind(
        PhaseKind.FINISHED,
        r"train|fit|exit",
        r"(?!)",
        r"\btraining (?:has |is |run |job |loop )?(?:completed|complete|finished|done|ended)\b"
        r"|\bfinished training\b"
        r"|trainer\.fit.{0,3} stopped|\bexit(?:ing|ed) (?:normally|cleanly|gracefully)|after training is done"
        r"|exiting program at iteration",
    ),
    _kind(
        PhaseKind.COLLECT,
        r"\bgc\b|garbage",
        r"(?:performing|running|start\w*|begin\w*) .{0,30}(?:\bgc\b|garbage collection)(?!.*\d\s?(?:s"
        r"|sec|seconds|ms)\b)",
        r"(?:\bgc\b|garbage collection).{0,60}\d(?:\.\d+)?\s?(?:s|secs?|seconds|ms)\b",
    ),
    _kind(
        PhaseKind.EVALUATION,
        r"eval|valid|sanity check|running prediction",
        r"\bevaluating\b|\bvalidating\b|running (?:the )?(?:evaluation|validation|eval|prediction|sanity)"
        r"|\b(?:start|begin)\w* (?:the )?(?:evaluation|validation|eval)\b|\b(?:evaluation|validation"
        r"|eval) (?:started|starts|begins|began|starting)"
        r"|sanity checking|validation dataloader",
        r"\b(?:evaluation|validation|eval|evaluating|validating)\b.{0,40}\b" + _DONE + r"\b"
        r"|\b(?:finished|completed|done) (?:with )?(?:the )?(?:evaluat|validat)|\bvalid(?:ation)? loss "
        r"at (?:iteration|step)|eval_runtime",
    ),
    _kind(
        PhaseKind.OFFLOAD,
        r"offload|onload|to_cpu|asleep|wak(?:e|ing)[ _]up",
        r"(?:[/_ ]|\b)(?:start|starting|started|begin|beginning|before)\b|\boffloading\b|\bonloading\b",
        r"(?:[/_ ]|\b)(?:done|finished|complete|completed|took|after|end|ended)\b|\bit took\b",
    ),
    _kind(
        PhaseKind.LOAD,
        r"load|restor|resum",
        r"\bloading (?:the )?(?:\w+ ){0,3}(?:checkpoint|weights|model|shards|state|safetensors)|\brestoring\b"
        r"|\bstart\w* (?:to )?load|\bresuming from (?:the )?(?:checkpoint|step|iteration)",
        r"\b(?:loading|load)\b.{0,60}\b(?:took|finished|done|completed|complete)\b|\b(?:successfully "
        r"|finished )load"
        r"|\b(?:checkpoint|weights|model)\b.{0,60}\b(?:loaded|restored)\b|\bloaded (?:the )?(?:\w+ "
        r"){0,2}(?:checkpoint|weights|model|state)",
    ),
    _kind(
        PhaseKind.CHECKPOINT,
        r"checkpoint|ckpt|\bsav(?:e|ing|ed) (?:the )?(?:model|weights|state|optimizer)|\bmodel weights saved",
        r"\bsaving\b|\bsave (?:the )?(?:\w+ )?checkpoint|about to be saved|\b(?:writing|dumping"
        r"|storing|persisting|staging)\b"
        r"|\bcheckpoint(?:ing)? (?:save )?(?:start|begin)\w*|\b(?:start|begin)\w* (?:to )?(?:sav"
        r"|checkpoint)|\bscheduled async",
        r"(?<!to be )\bsaved\b|\bwrote\b|\bwritten\b|\b(?:finish\w*|done|end\w*|completed) (?:\w+ "
        r"){0,2}(?:sav|checkpoint|writ)"
        r"|\b(?:save|saving|checkpoint|writing|checkpointing)\b.{0,80}\b(?:took|finished|save duration"
        r"|done|succe\w+|finalized|is ready now|completed in)\b"
        r"|\bcheckpoint (?:save )?(?:is )?(?:complete|completed)\b",
    ),
    _kind(
        PhaseKind.INIT,
        r"init|rendezvous",
        r"\binitiali[sz]ing (?:torch[ .]distributed|distributed|process group|nccl|model parallel"
        r"|deepspeed|the engine|an? .{0,12}engine)"
        r"|\bwaiting for rendezvous|\bstart\w* (?:process group )?initiali[sz]ation",
        r"\binit(?:iali[sz]ation|iali[sz]ing)? (?:engine|process group|distributed)?.{0,60}\b(?:took"
        r"|finished|done|completed|complete)\b"
        r"|\binitiali[sz]ed (?:process group|distributed|tensor model parallel)|\brendezvous "
        r"(?:complete|completed|done)",
    ),
    _kind(
        PhaseKind.COMPILE,
        r"compil|graph|kernels|autotun|extension module|dynamo|warm(?:ing)? ?up",
        r"\bcompiling\b|\bcapturing\b.{0,30}graph|\bautotuning\b|\bbuilding extension module"
        r"|\bstart\w* (?:torch\.)?compil"
        r"|\bcompilation (?:start|begin)\w*|\bwarm(?:ing)? ?up (?:the )?(?:model|engine|kernels)",
        r"\bcompil(?:ation|ed|ing|e)\b.{0,80}\b(?:took|takes|finished|done|complete|completed|time)\b"
        r"|\bdone with compiling"
        r"|graph captur(?:ing|e) (?:finished|took|done|complete)|\bfinished (?:xla )?compil|dynamo "
        r"bytecode transform time"
        r"|\bcapture cuda graph (?:end|done)|\btime to load \w+ op",
    ),
    _kind(
        PhaseKind.DATA,
        r"data|dataset|token|split|ela(?:ps|sp)ed time to build|index|corpus|samples|examples|test set"
        r"|train(?:ing)? set|shuffl",
        r"\b(?:building|preparing|processing|preprocessing|pre-processing|tokenizing|tokenising"
        r"|shuffling|indexing|generating"
        r"|mapping|caching|packing|downloading|loading|reading|converting)\b.{0,60}(?:data|datasets?"
        r"|split|indices|index|corpus|samples"
        r"|examples|test set|train(?:ing)? set|valid(?:ation)? set|eval set|features|tokens|shards)\b"
        r"|\brunning tokenizer on"
        r"|\b(?:data|dataset) (?:preparation|preprocessing|processing) (?:start|begin)\w*",
        r"\b(?:finished|done|completed) .{0,40}(?:datasets?|data|index|indices|tokeniz|split)\b"
        r"|ela(?:ps|sp)ed time to build"
        r"|\bdatasets?\b.{0,40}\b(?:ready|built|loaded|prepared|done|finished)\b|\btime to (?:build"
        r"|load|prepare) .{0,30}data",
    ),
)  # fmt: skip


_FAILED = re.compile(r"(?:Error|Exception)\b:|[Tt]imed out")


class Phases:
    """Begin or end of a phase, at most one for each line; with its duration where the line says it."""

    name = "phases"
    needles = (
        "heckpoint", "ckpt", "CKPT", "sav", "Sav", "val", "Val", "oad", "ompil", "graph", "data", "Data",
        "oken", "est set", "plit", "ndex", "nit", "rain", "gc", "GC", "arbage", "asleep", "wake", "stor",
        "sum", "xit", "Running", "to_cpu", "apturing", "utotun", "arm up", "arming up", "endezvous", "fit",
        "corpus", "amples", "huffl",
    )  # fmt: skip

    def read(self, block: Block) -> Iterator[Fact]:
        text = _BAR_WORDS.sub("%", block.line.text[:_LOOK_CHARS])
        if text.lstrip()[:2] == '{"' or _NOT.search(text):
            return
        for kind in _KINDS:
            if not kind.about.search(text):
                continue
            if kind.kind is PhaseKind.INIT and _FAILED.search(text):  # the end of an attempt, not a new one
                return
            ended = kind.end.search(text) is not None
            if ended or kind.begin.search(text):
                yield PhaseSeen(
                    **base_of(block),
                    kind=kind.kind,
                    ended=ended,
                    text=text.strip()[:200],
                    duration_s=_duration(text) if ended else None,
                )
                return


def _duration(text: str) -> float | None:
    if found := _SECONDS_NAMED.search(text) or _AND_SECONDS.search(text):
        return float(found["value"])
    every = list(_DURATION.finditer(text))
    for found in sorted(every, key=lambda one: "duration" not in one[0].lower()):
        unit = (found["unit"] or "").lower()
        if not unit and "runtime" not in found[0]:
            continue
        return float(found["value"]) * {"ms": 1e-3, "m": 60.0}.get(unit if unit == "ms" else unit[:1], 1.0)
    return None
