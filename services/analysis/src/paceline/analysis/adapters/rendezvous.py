"""Coordinators and stores: who serves which endpoint, who asks for which, and who waits in vain.

Settings: `endpoint_served` and `endpoint_used` ("host:port"). A server that listens on every address serves
no named endpoint. A store that fails later, while the job runs, is no failed start.
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, NetworkFailure, NetworkKind, SettingSeen

_ADDRESS = r"(?:tcp://)?(?P<address>(?:\[[\da-fA-F:.]{2,45}\]|[\w.-]{1,128}):\d{2,5})\b"
_SERVICE = (
    r"(?:JAX )?(?:coordination service|coordinator(?: service)?|distributed service|rendezvous(?: server| "
    r"backend)?|"
    r"(?:TCP)?[Ss]tore(?: server)?|master)"
)
_OTHER = _ADDRESS.replace("<address>", "<other>")
_SERVED = re.compile(
    r"(?:[Ss]tarting|[Ss]tarted|[Ss]erving|[Ll]aunching) (?:the )?"
    + (_SERVICE + r"[^\n]{0,20}? (?:on|at) " + _ADDRESS + "|" + _SERVICE)
    + r" (?:is )?(?:listening|started|running|serving|bound)(?: to listen)? (?:on|at|to) "
    + _OTHER
)
_USED = re.compile(
    r"(?:[Cc]onnecting|[Cc]onnected|[Cc]onnect|[Rr]egistering|[Jj]oining) (?:to|with|at) (?:the )?(?:"
    + (_SERVICE + r" )?(?:at |on |via )?" + _ADDRESS)
    + r"|(?:rdzv[_-]endpoint|coordinator[_-]address|init[_-]method|dist[_-]url)['\"]?\s{0,8}[=: ]{1,3}['\"]?"
    + _OTHER
)
_MASTER = re.compile(r"\bMASTER_ADDR['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?P<host>[\w.-]{1,128})")
_MASTER_PORT = re.compile(r"\bMASTER_PORT['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?P<port>\d{2,5})\b")
_SERVICE_WORD = re.compile(
    r"coordinat|rendezvous|rdzv|[Ss]tore|master|distributed service|init[_-]method|dist[_-]url"
)
_NOBODY = re.compile(
    r"Timed out after \d{1,9} seconds waiting for clients|client socket has (?:failed to connect|timed out)|"
    r"Rendezvous(?:Connection|Timeout|Closed|State)?Error|connection to the C10d store has failed|"
    r"failed to connect to (?:the )?(?:coordinat|master|TCPStore|rendezvous)|"
    r"RegisterTask.{0,200}DEADLINE_EXCEEDED|DEADLINE_EXCEEDED.{0,200}RegisterTask|DistNetworkError|"
    r"DistStoreError"
)
_WAITED = re.compile(
    r"wait timeout after (?P<ms>\d{1,12})ms|StoreTimeout|Socket Timeout\b|Timeout waiting for key"
)
_LOST = re.compile(
    r"(?:recvValueWithTimeout|recvValue|sendBytes|recvBytes|recvVector) failed|remote server shutdown or "
    r"crash|"
    r"[Ff]ailed to check the \"should dump\" flag on TCPStore|"
    r"store->get\([^()]{0,80}\) got error: (?:Connection (?:reset|closed|refused)|Broken pipe)"
)
_IN_USE = re.compile(r"failed to listen on any local network address|EADDRINUSE")
_PORT = re.compile(r"(?:\]|\d):(?P<at>\d{2,5}) \(errno: (?:98|48)|\bport: (?P<port>\d{2,5})\b")
_UNRESOLVED = re.compile(
    r"addresses of \((?P<name>[A-Za-z][\w.-]{0,127}), \d{2,5}\) cannot be retrieved"
    r"|[Cc]ould not resolve host(?:name)?:? '?(?P<host>[A-Za-z][\w.-]{0,127})"
    r"|(?:lookup|resolve) (?P<other>[A-Za-z][\w.-]{0,127})\b.{0,80}(?:no such host"
    r"|[Nn]ame or service not known|name resolution)"
)
_PEER = re.compile(
    r"(?:\[(?P<host>[\w.:-]{1,128})\]:(?P<port>\d{2,5})|\((?P<name>[\w.:-]{1,128}), (?P<number>\d{2,5})\))"
)
_ANY = ("[::]", "0.0.0.0", "*", "[::0]")


class Endpoints:
    """Endpoints as both sides write them."""

    name = "endpoints"
    needles = (
        "oordinat", "endezvous", "rdzv", "istributed service", "tore ", "master", "init_method",
        "init-method", "MASTER_ADDR",
        "dist_url", "dist-url",
    )  # fmt: skip

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _SERVED.search(text):
            name = "endpoint_served"
        elif _SERVICE_WORD.search(text) and (found := _USED.search(text)):
            name = "endpoint_used"
        elif found := _MASTER.search(text):
            port = _MASTER_PORT.search(text)
            value = f"{found['host']}:{port['port'] if port else '0'}"
            yield SettingSeen(**base_of(block), name="master", value=value, text=text[:300])
            return
        else:
            return
        address = found["address"] or found["other"]
        if address.rpartition(":")[0] not in _ANY:
            yield SettingSeen(**base_of(block), name=name, value=address, text=text[:300])


class StoreSetup:
    """Settings `port_in_use` (its number, where it is said) and `name_unresolved` (the name)."""

    name = "store setup"
    needles = ("EADDRINUSE", "failed to listen", "failed to bind", "cannot be retrieved", "esolve", "lookup ")

    def __init__(self) -> None:
        self._port = ""

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _PORT.search(text):
            self._port = found["at"] or found["port"]
        if _IN_USE.search(text):
            yield SettingSeen(**base_of(block), name="port_in_use", value=self._port, text=text[:300])
        elif found := _UNRESOLVED.search(text):
            name = found["name"] or found["host"] or found["other"]
            yield SettingSeen(**base_of(block), name="name_unresolved", value=name, text=text[:300])


class StoreFailures:
    """Rendezvous that fails, keys that nobody sets, stores that are gone."""

    name = "store"
    needles = (
        "waiting for clients", "client socket has", "Rendezvous", "C10d store", "failed to connect to",
        "RegisterTask",
        "DistNetworkError", "DistStoreError", "wait timeout after", "StoreTimeout", "Socket Timeout",
        "Bytes failed",
        "recvV", "remote server shutdown", "flag on TCPStore", "Timeout waiting for key", "got error: ",
    )  # fmt: skip

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if "NCCL WARN" in text:
            return
        if _LOST.search(text):
            kind = NetworkKind.CLOSED
        elif _NOBODY.search(text):
            kind = NetworkKind.RENDEZVOUS
        elif _WAITED.search(text):
            kind = NetworkKind.TIMEOUT
        else:
            return
        peer = _PEER.search(text)
        address = f"{peer['host'] or peer['name']}:{peer['port'] or peer['number']}" if peer else ""
        yield NetworkFailure(**base_of(block), kind=kind, peer=address, text=text[:500])
