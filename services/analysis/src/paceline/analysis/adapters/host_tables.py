"""Tables of measurements and of processes: nccl-tests, perftest (`ib_write_bw`), `top`, `ps`, `load average`.

Rows are `SampleRow`: `nccl_tests`, `network_bench`, `processes`, `load`. Columns of a table that are not
known are left out; a column that appears twice (in place) has `_2` after its name.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, Group, Membership, SampleRow

ROWS_MAX = 64
COLUMNS_MAX = 32
_NUMBER = re.compile(r"-?(?:\d{1,15}(?:\.\d{0,9})?|\.\d{1,9})(?:e[+-]?\d{1,3})?", re.IGNORECASE)
_NCCL_DEVICE = re.compile(
    r"#\s{1,8}Rank\s{1,8}(?P<rank>\d{1,7}) Group\s{1,8}\d{1,4} Pid\s{1,8}(?P<pid>\d{1,9}) on\s{1,8}"
    r"(?P<host>\S{1,128}) device\s{1,8}(?P<device>\d{1,4}) "
    r"\[(?:0x[\da-fA-F]{1,4}\]|(?P<pci>[\da-fA-F]{4}:[\da-fA-F]{2}:[\da-fA-F]{2}))"
)
_AVERAGE = re.compile(r"Avg bus bandwidth\s{0,8}:\s{0,8}(?P<value>\d{1,9}(?:\.\d{1,9})?)")
_LOAD = re.compile(r"load average: ?(?P<load>\d{1,9}(?:\.\d{1,4})?)")
_CORES = re.compile(r"\b(?:cores|cpus|nproc)[:= ]{1,3}(?P<cores>\d{1,6})", re.IGNORECASE)
_COMMAND_RANK = re.compile(r"\brank[ =:]{0,2}(?P<rank>\d{1,7})\b", re.IGNORECASE)
_NCCL_COLUMNS = {
    "size": "bytes", "count": "count", "time": "time_us", "algbw": "algbw_gbps", "busbw": "busbw_gbps",
    "#wrong": "wrong", "error": "error", "type": "dtype", "redop": "redop", "root": "root",
}  # fmt: skip
_PERFTEST = re.compile(r"#bytes|#iterations|[A-Za-z_]{1,20}(?: (?:peak|average))?\[[A-Za-z/]{1,12}\]")
_TOP_COLUMNS = {
    "PID": "pid", "%CPU": "cpu_percent", "PSR": "core", "NI": "nice", "%MEM": "memory_percent",
    "USER": "user", "S": "state", "STAT": "state", "COMMAND": "command", "CMD": "command",
}  # fmt: skip


class BandwidthTables:
    """nccl-tests and perftest: the header names the columns, the rows below are read with it."""

    name = "bandwidth tests"
    needles = ("algbw", "#bytes", "Avg bus bandwidth", "Rank")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _AVERAGE.search(text):
            numbers = {"average_busbw_gbps": float(found["value"])}
            yield SampleRow(**base_of(block), kind="nccl_tests", numbers=numbers)
        elif found := _NCCL_DEVICE.search(text):
            yield self._member(block, found)
        elif "algbw" in text and "busbw" in text:
            names = text.replace("# ", " ").split()[:COLUMNS_MAX]
            names = names[1:] if names[:1] == ["#"] else names
            yield from _rows(block, [_NCCL_COLUMNS.get(name, "") for name in names], "nccl_tests")
        elif "#bytes" in text:
            columns = [_perftest_name(name) for name in _PERFTEST.findall(text[:1000])]
            yield from _rows(block, columns, "network_bench")

    def _member(self, block: Block, found: re.Match[str]) -> Fact:
        base = base_of(block)
        base["speaker"] = replace(
            base["speaker"],
            rank=int(found["rank"]),
            pid=int(found["pid"]),
            host=found["host"],
            local_rank=int(found["device"]),
            gpu=normal_pci(found["pci"]) if found["pci"] else "",
        )
        return Membership(**base, group=Group(), rank_in_group=int(found["rank"]))


class ProcessTables:
    """`top` and `ps`: who uses the processors; a command that names its rank gives it to the row."""

    name = "process table"
    needles = ("PID", "load average")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _LOAD.search(text):
            numbers = {"load": float(found["load"])}
            if cores := _CORES.search(text):
                numbers["cores"] = float(cores["cores"])
            yield SampleRow(**base_of(block), kind="load", numbers=numbers)
            return
        names = text.split()[:COLUMNS_MAX]
        if "PID" not in names or not {"COMMAND", "CMD"} & set(names):
            return
        yield from _rows(block, [_TOP_COLUMNS.get(name, "") for name in names], "processes")


def _rows(block: Block, columns: Sequence[str], kind: str) -> Iterator[Fact]:
    """One fact for each line below the header that has as many fields, until the table ends."""
    last_is_text = columns[-1:] == ["command"]
    for line in list(block.after)[:ROWS_MAX]:
        text = line.text[:LOOK_CHARS].strip()
        if not text or not (text[0].isdecimal() or (last_is_text and kind == "processes")):
            if text.startswith("#") or not text:
                continue
            break
        fields = text.split(None, len(columns) - 1) if last_is_text else text.split()[: COLUMNS_MAX + 1]
        row = _row(columns, fields)
        if row is None:
            if kind == "processes":
                break
            continue
        numbers, words = row
        base = {**base_of(block), "origin": line.origin, "speaker": line.speaker, "time_s": line.time_s}
        if found := _COMMAND_RANK.search(words.get("command", "")):
            base["speaker"] = replace(line.speaker, rank=int(found["rank"]))
        if "pid" in numbers:
            base["speaker"] = replace(base["speaker"], pid=int(numbers["pid"]))
        yield SampleRow(**base, kind=kind, numbers=numbers, words=words)


def _row(columns: Sequence[str], fields: Sequence[str]) -> tuple[dict[str, float], dict[str, str]] | None:
    if len(fields) != len(columns) or not fields:
        return None
    numbers: dict[str, float] = {}
    words: dict[str, str] = {}
    for column, field in zip(columns, fields, strict=True):
        if not column:
            continue
        name = f"{column}_2" if column in numbers or column in words else column
        if column != "command" and _NUMBER.fullmatch(field):
            numbers[name] = float(field)
        else:
            words[name] = field[:300]
    first = columns[0]
    return (numbers, words) if first in numbers or "pid" in numbers else None


def _perftest_name(name: str) -> str:
    """`BW average[Gb/sec]` as `bw_average_gbps`, `t_avg[usec]` as `t_avg_us`."""
    word, _, unit = name.lower().strip("#]").partition("[")
    unit = {"gb/sec": "_gbps", "mb/sec": "_mb_s", "usec": "_us", "mpps": "_mpps"}.get(unit, "")
    return word.replace(" ", "_") + unit
