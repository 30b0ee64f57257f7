"""NCCL_DEBUG lines, INFO and WARN, of NCCL 2.10 to 2.32.

Peers of InfiniBand completions are addresses, not ranks; opcode and length of a failed completion mean
nothing.
`[0]` after the thread is a CUDA device, never a rank.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.kernel_log import normal_pci
from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import (
    CallSeen,
    Fact,
    Group,
    Membership,
    NetworkFailure,
    NetworkKind,
    SettingSeen,
    Work,
)

_DEVICE = re.compile(r"^\[(\d{1,3})\] ")
_INIT = re.compile(
    r"(?P<call>ncclComm[A-Za-z]{1,32})\b.* comm (?P<comm>0x[\da-fA-F]+) rank (?P<rank>\d{1,18}) "
    r"nranks (?P<size>\d{1,18})"
    r"(?: cudaDev (?P<device>\d{1,18}))?(?: nvmlDev \d{1,18})?(?: busId (?P<bus>[\da-fA-F]+))?(?: "
    r"commId (?P<id>0x[\da-fA-F]+))?"
    r".*? ?- Init (?P<stage>START|COMPLETE)"
)
_OLD_INIT = re.compile(
    r"comm (?P<comm>0x[\da-fA-F]+) rank (?P<rank>\d{1,18}) nranks (?P<size>\d{1,18}) cudaDev "
    r"(?P<device>\d{1,18})"
    r"(?: busId (?P<bus>[\da-fA-F]+))? - Init (?P<stage>START|COMPLETE)"
)
_CALL = re.compile(
    r"(?P<function>[A-Z][A-Za-z]+): opCount (?P<count>[\da-fA-F]+) sendbuff \S+ recvbuff \S+ (?:acc "
    r"\S+ )?count "
    r"(?P<elements>\d{1,18}) datatype (?P<dtype>\d{1,18}) op (?P<op>\d{1,18}) root (?P<root>-?\d{1,18}) "
    r"comm (?P<comm>0x[\da-fA-F]+)"
    r" \[nranks=(?P<size>\d{1,18})\]"
)
_COMPLETION = re.compile(
    r"Got completion from peer (?P<peer>[^\s<]{1,128})(?:<(?P<port>\d{1,18})>)? with (?:error "
    r"(?P<error>\d{1,18})|status=(?P<status>\d{1,18})|"
    r"status=\w+\((?P<named>\d{1,18})\))"
)
_HCA = re.compile(r"\bhca (?P<hca>[\w.-]+)")
_EVENT = re.compile(
    r"(?:Got async event\s*: |(?P<device>[\w.-]+):\d{1,18} (?:Got async (?:error )?event|"
    r"async fatal event)(?: on (?:CQ|QP|SRQ))?[^:]*: )"
    r"(?P<event>.+)"
)
_HARMLESS = re.compile(  # ibv_event_type_str of what no transfer fails by; old NCCL warned of them all
    r"port active|client reregistration|table change|subnet manager change|LID change|"
    r"communication established|limit reached",
    re.IGNORECASE,
)
_OPEN = re.compile(r"Unable to open device (?P<device>[\w.-]+)")
_TRUNCATED = re.compile(r"message truncated : receiving (?P<a>\d{1,18}) bytes instead of (?P<b>\d{1,18})")
_OFI = re.compile(
    r"libfabric:\d.{0,200}<warn> err: \d+, message: .{0,400}Peer (?:EFA addr|host id)|"
    r"NET/OFI.{0,300}?(?:completed with error|Request .*error|Received completion error)",
    re.IGNORECASE,
)
_OFI_PEER = re.compile(r"Peer host id: ?([\w.-]{2,64})")
_CONNECT = re.compile(
    r"(?:[Cc]onnect(?:ing)? to|Call to (?:connect|recv|recvfrom|send)(?: (?:from|"
    r"to))?) (?P<peer>[\w.:\[\]%-]{3,80}(?:<\d{1,18}>)?)"
    r".{0,40}(?:failed|timed out|refused)"
)
_RESET = re.compile(
    r"Call to (?:recv|recvfrom|send|read|write|recvmsg|sendmsg)(?: (?:from|to) "
    r"(?P<peer>[\w.:\[\]%-]{3,80}(?:<\d{1,18}>)?))?.{0,40}failed ?: ?"
    r"(?:Connection reset by peer|Broken pipe|Connection aborted)"
)
_CLOSED_BY = re.compile(r"closed by remote peer (?P<peer>[\w.:\[\]%-]{3,80}(?:<\d{1,18}>)?)")
_VERSION = re.compile(r"^(?:\[\d{1,18}\] )?(?:NCCL INFO )?NCCL version (?P<version>[\d.]+)")
_ENVIRONMENT = re.compile(r"(?P<name>NCCL_[A-Z0-9_]+) set by environment to (?P<value>\S+)")
_DTYPES = {
    0: "int8", 1: "uint8", 2: "int32", 3: "uint32", 4: "int64", 5: "uint64", 6: "float16", 7: "float32",
    8: "float64", 9: "bfloat16",
}  # fmt: skip
_MEETS = ("ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommInitRankScalable")
_OPS = {0: "sum", 1: "prod", 2: "max", 3: "min", 4: "avg"}


class NcclMembers:
    """`ncclCommInitRank comm ... rank 3 nranks 8 ... - Init COMPLETE`: which rank a process is."""

    name = "nccl init"
    needles = ("Init START", "Init COMPLETE")

    def read(self, block: Block) -> Iterator[Fact]:
        found = find_init(block.line.text)
        if not found or found.groupdict().get("call", _MEETS[0]) not in _MEETS:
            return  # members of splits are numbered anew, which ranks of the job they are is not said
        bus = found["bus"] or ""
        base = device_base(block)
        gpu = _gpu_of_bus(bus)
        base["speaker"] = replace(
            base["speaker"], group_rank=int(found["rank"]), gpu=gpu or base["speaker"].gpu
        )
        name = found.groupdict().get("id") or ""
        yield Membership(
            **base,
            group=Group(name=name, description=found["comm"], size=int(found["size"])),
            rank_in_group=int(found["rank"]),
            complete=found["stage"] == "COMPLETE",
        )


class NcclCalls:
    """`AllReduce: opCount f7 sendbuff ...` (NCCL_DEBUG_SUBSYS=COLL); opCount is hexadecimal."""

    name = "nccl calls"
    needles = (": opCount ",)

    def read(self, block: Block) -> Iterator[Fact]:
        found = _CALL.search(block.line.text[:LOOK_CHARS])
        if not found:
            return
        function = function_of(found["function"])
        work = Work(
            function=function,
            sequence=int(found["count"], 16),
            count_in=int(found["elements"]),
            dtype=_DTYPES.get(int(found["dtype"]), found["dtype"]),
            reduce_op=_OPS.get(int(found["op"]), found["op"]) if "reduce" in function else "",
            root=int(found["root"]) if function in ("broadcast", "reduce", "gather", "scatter") else None,
        )
        group = Group(description=found["comm"], size=int(found["size"]))
        yield CallSeen(**device_base(block), group=group, work=work)


class NcclNetwork:
    """Failures of InfiniBand and sockets in every wording since 2.10."""

    name = "nccl network"
    needles = (
        "Got completion from peer", "async", "Unable to open device", "message truncated", "mismatch error",
        "onnection closed by remote peer", "collective mismatch", "socket", "NET/OFI", "libfabric:",
        "onnect", "Call to ",
    )  # fmt: skip

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if "NCCL" not in text and "NET/" not in text and "libfabric:" not in text:
            return
        base = device_base(block)
        if found := _COMPLETION.search(text):
            status = int(found["error"] or found["status"] or found["named"])
            device = _HCA.search(text)
            peer = found["peer"] + (f"<{found['port']}>" if found["port"] else "")
            yield NetworkFailure(
                **base, kind=NetworkKind.COMPLETION, status=status, peer=peer,
                device=device["hca"] if device else "", text=text[:500],
            )  # fmt: skip
        elif "WARN" in text and (found := _EVENT.search(text)):
            if _HARMLESS.search(found["event"]):
                return
            yield NetworkFailure(
                **base, kind=NetworkKind.PORT, device=found["device"] or "", text=found["event"][:500]
            )
        elif found := _OPEN.search(text):
            yield NetworkFailure(**base, kind=NetworkKind.OPEN, device=found["device"], text=text[:500])
        elif _TRUNCATED.search(text):
            yield NetworkFailure(**base, kind=NetworkKind.TRUNCATED, text=text[:500])
        elif "mismatch" in text and ("local size" in text or "remote size" in text):
            yield NetworkFailure(**base, kind=NetworkKind.MISMATCH, text=text[:500])
        elif "onnection closed by remote peer" in text:
            peer = found["peer"] if (found := _CLOSED_BY.search(text)) else ""
            yield NetworkFailure(**base, kind=NetworkKind.CLOSED, peer=peer, text=text[:500])
        elif _OFI.search(text):
            peer = found[1] if (found := _OFI_PEER.search(text)) else ""
            yield NetworkFailure(**base, kind=NetworkKind.COMPLETION, peer=peer, text=text[:500])
        elif found := _RESET.search(text):
            yield NetworkFailure(**base, kind=NetworkKind.CLOSED, peer=found["peer"] or "", text=text[:500])
        elif found := _CONNECT.search(text):
            yield NetworkFailure(**base, kind=NetworkKind.TIMEOUT, peer=found["peer"], text=text[:500])


class NcclSettings:
    """NCCL's version and the variables it says it took from the environment."""

    name = "nccl settings"
    needles = ("NCCL version", "set by environment to")

    def read(self, block: Block) -> Iterator[Fact]:
        if found := _VERSION.search(block.line.text[:LOOK_CHARS]):
            yield SettingSeen(**device_base(block), name="nccl_version", value=found["version"])
        elif found := _ENVIRONMENT.search(block.line.text[:LOOK_CHARS]):
            yield SettingSeen(**device_base(block), name=found["name"], value=found["value"])


def find_init(text: str) -> re.Match[str] | None:
    """Begin or end of the making of a communicator, by whichever call: groups comm, rank, size, stage and,
    where the release prints them, call and id."""
    return _INIT.search(text[:LOOK_CHARS]) or _OLD_INIT.search(text[:LOOK_CHARS])


def device_base(block: Block) -> dict[str, Any]:
    """As `base_of`; the CUDA device of the line as local rank where no address is known."""
    line = block.line
    device = _DEVICE.match(line.text[:LOOK_CHARS])
    if not device or line.speaker.gpu:
        return base_of(block)
    return base_of(block, replace(line.speaker, local_rank=int(device[1])))


def _gpu_of_bus(bus: str) -> str:
    """NCCL prints the bus id as one hexadecimal number: 0x9b000 is 0000:9b:00."""
    if not bus or len(bus) > 12:
        return ""
    value = int(bus, 16)
    return normal_pci(f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}")
