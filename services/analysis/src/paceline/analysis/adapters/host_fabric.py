"""What hosts say of their buses and ports: `lspci -vvv` (ACS), `ibstat`, `rdma link`, `ibv_devinfo`.

Settings: `pcie_acs` ("redirect" where peer-to-peer is sent up to the root, "off"), `ib_port` (device, port
and state of every port), `ib_rate` (device and rate).
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, NetworkFailure, NetworkKind, SettingSeen

_DEVICE = re.compile(
    r"^(?P<pci>(?:[\da-fA-F]{4}:)?[\da-fA-F]{2}:[\da-fA-F]{2}\.[\da-fA-F]) (?P<words>.{1,160})"
)
_ACS = re.compile(r"ACSCtl:\s{0,8}(?P<flags>(?:[A-Za-z]{1,20}[+-]\s?){1,16})")
_CA = re.compile(r"^\s{0,8}(?:CA '(?P<ca>[\w.-]{1,64})'|hca_id:\s{1,20}(?P<hca>[\w.-]{1,64}))")
_PORT = re.compile(r"^\s{0,20}(?:Port|port:)\s{1,20}(?P<port>\d{1,3}):?\s*$")
_STATE = re.compile(r"^\s{0,20}(?:State|state):\s{1,20}(?:PORT_)?(?P<state>[A-Za-z]{2,20})")
_PHYSICAL = re.compile(r"^\s{0,20}Physical state:\s{1,8}(?P<state>\w{2,30})")
_RATE = re.compile(r"^\s{0,20}Rate:\s{1,8}(?P<rate>\d{1,5})")
_RDMA = re.compile(
    r"\blink (?P<device>[\w.-]{1,64})/(?P<port>\d{1,3}) (?:subnet_prefix \S{1,60} )?(?:lid \d{1,6} )?"
    r"(?:sm_lid \d{1,6} )?(?:lmc \d{1,3} )?state (?P<state>[A-Z]{2,20}) "
    r"physical_state (?P<physical>[A-Z_]{2,30})"
)
_UP = ("active", "linkup", "link_up")


class PciSwitches:
    """ACSCtl lines; the device is that of the line above, where it is given."""

    name = "lspci"
    needles = ("ACSCtl:", "PCI bridge", "bridge:", "controller")

    def __init__(self) -> None:
        self._file, self._line, self._device = "", 0, ""

    def read(self, block: Block) -> Iterator[Fact]:
        origin, text = block.line.origin, block.line.text[:LOOK_CHARS]
        if origin.file != self._file or origin.line < self._line:
            self._device = ""
        self._file, self._line = origin.file, origin.line
        if found := _ACS.search(text):
            flags = found["flags"].split()
            redirects = any(flag in ("ReqRedir+", "CmpltRedir+", "EgressCtrl+") for flag in flags)
            whole = f"{self._device} {found[0].strip()}".strip()
            yield SettingSeen(
                **base_of(block), name="pcie_acs", value="redirect" if redirects else "off", text=whole
            )
        elif found := _DEVICE.match(text):
            self._device = f"{found['pci']} {found['words']}"


class NetworkPorts:
    """States of ports; one that is not up is a failure as well."""

    name = "rdma ports"
    needles = ("CA '", "hca_id", "Port ", "port:", "tate:", "Rate:", "physical_state")

    def __init__(self) -> None:
        self._file, self._line, self._device, self._port = "", 0, "", ""

    def read(self, block: Block) -> Iterator[Fact]:
        origin, text = block.line.origin, block.line.text[:LOOK_CHARS]
        if origin.file != self._file or origin.line < self._line:
            self._device = self._port = ""
        self._file, self._line = origin.file, origin.line
        if found := _RDMA.search(text):
            for state in (found["state"], found["physical"]):
                yield from self._state(block, found["device"], found["port"], state)
        elif found := _CA.match(text):
            self._device, self._port = found["ca"] or found["hca"], ""
        elif found := _PORT.match(text):
            self._port = found["port"]
        elif self._device and self._port:
            yield from self._details(block, text)

    def _details(self, block: Block, text: str) -> Iterator[Fact]:
        if found := _STATE.match(text) or _PHYSICAL.match(text):
            yield from self._state(block, self._device, self._port, found["state"])
        elif found := _RATE.match(text):
            yield SettingSeen(
                **base_of(block), name="ib_rate", value=f"{self._device} {found['rate']}", text=text.strip()
            )

    def _state(self, block: Block, device: str, port: str, state: str) -> Iterator[Fact]:
        value = f"{device}/{port} {state.lower()}"
        yield SettingSeen(
            **base_of(block), name="ib_port", value=value, text=block.line.text[:LOOK_CHARS].strip()[:300]
        )
        if state.lower() not in _UP:
            yield NetworkFailure(**base_of(block), kind=NetworkKind.PORT, device=device, text=value)
