"""Error counters of ports: `ethtool -S`, `perfquery`, `ibqueryerrors`, `nvidia-smi nvlink -e`.

Rows are `SampleRow` of kind `network`, one for each counter that means an error; `words["gpu"]` names the
adapter or GPU. The values count from the start of the driver.
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, SampleRow

_ETHTOOL = re.compile(r"^\s{1,8}(?P<name>[a-z][\w\[\]]{2,60}): (?P<value>\d{1,18})\s*$")
_PERFQUERY = re.compile(r"^(?P<name>[A-Z][A-Za-z]{4,40}):\.{2,40}(?P<value>\d{1,18})\s*$")
_ERRORS = re.compile(
    r"symbol_err|crc|_fcs_|discards?_phy|rx_discard|tx_discard|out_of_sequence|packet_seq_err|rx_out_of_buffer|"
    r"link_down_events|local_ack_timeout|SymbolError|LinkErrorRecovery|LinkDowned|RcvErrors|XmtDiscards|"
    r"LocalLinkIntegrity|rnr_nak|err_phy"
)
_SPLIT = re.compile(r"(?<=[a-z])(?=[A-Z])")
_QUERY_NODE = re.compile(
    r"^Errors for (?:0x[\da-f]{1,16} )?\"(?P<node>[\w.-]{1,64})(?: (?P<device>[\w.-]{1,32}))?"
)
_QUERY = re.compile(r"\[(?P<name>[A-Z][A-Za-z]{4,40}) == (?P<value>\d{1,18})\]")
_GPU = re.compile(r"^GPU (?P<index>\d{1,3}): ")
_NVLINK = re.compile(
    r"^\s*Link (?P<link>\d{1,3}): (?P<name>(?:Replay|Recovery|CRC)[\w ]{0,20}Errors?): (?P<value>\d{1,18})"
)
_DEVICE_IN_NAME = re.compile(
    r"(?<![a-z])(?P<device>mlx5_\w{1,8}|e(?:n|th(?!tool))[\w]{2,16}|ib\d{1,3}|bond\d)(?![a-z])"
)


class PortCounters:
    """Lines `name: value`, by the tool that the header above belongs to."""

    name = "port counters"
    needles = (
        "NIC statistics", ":..", "Errors for ", " == ", "GPU ", "Errors:", "symbol_err", "crc", "_fcs_",
        "discard", "out_of_", "packet_seq_err", "link_down", "ack_timeout", "rnr_nak", "err_phy",
    )  # fmt: skip

    def __init__(self) -> None:
        self._file, self._line = "", 0
        self._node, self._device, self._table = "", "", ""

    def read(self, block: Block) -> Iterator[Fact]:
        origin, text = block.line.origin, block.line.text[:LOOK_CHARS]
        if origin.file != self._file or origin.line < self._line:
            named = _DEVICE_IN_NAME.search(origin.file.rpartition("/")[2])
            self._node, self._device, self._table = "", named["device"] if named else "", ""
        self._file, self._line = origin.file, origin.line
        if text.startswith("NIC statistics"):
            self._table = "ethtool"
        elif found := _QUERY_NODE.match(text):
            self._node, self._device, self._table = found["node"], found["device"] or "", "ibqueryerrors"
        elif found := _GPU.match(text):
            self._device, self._table = f"GPU {found['index']}", "nvlink"
        else:
            yield from self._counters(block, text)

    def _counters(self, block: Block, text: str) -> Iterator[Fact]:
        found: re.Match[str] | None
        if self._table == "nvlink" and (found := _NVLINK.match(text)):
            name = "nvlink_" + found["name"].lower().replace(" ", "_")
            yield self._row(block, {f"{name}_link_{found['link']}": float(found["value"])})
        elif self._table == "ibqueryerrors":
            numbers = {
                one["name"]: float(one["value"])
                for one in _QUERY.finditer(text)
                if _ERRORS.search(one["name"])
            }
            if numbers:
                yield self._row(block, numbers)
        else:
            found = _ETHTOOL.match(text) if self._table == "ethtool" else _PERFQUERY.match(text)
            if found and _ERRORS.search(found["name"]):
                yield self._row(block, {found["name"]: float(found["value"])})

    def _row(self, block: Block, numbers: dict[str, float]) -> Fact:
        numbers = {_SPLIT.sub("_", name).lower(): value for name, value in numbers.items()}
        words = {"gpu": self._device} if self._device else {}
        if self._node:
            words["node"] = self._node
            words["tool"] = "ibqueryerrors"  # lists what is wrong in the whole fabric
        return SampleRow(**base_of(block), kind="network", numbers=numbers, words=words)
