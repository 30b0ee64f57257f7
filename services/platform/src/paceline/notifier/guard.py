"""Where webhooks may go: not into our own network, unless the operator says so.

The name is resolved here, every address is judged, and the connection is made to the address that
was judged, so that a name which changes its answer between the two gains nothing.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpcore

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
NAT64 = ip_network("64:ff9b::/96")  # RFC 6052: an IPv4 address in the last 32 bits
ADDRESSES_MAX = 8


class AddressReason(str, Enum):
    PUBLIC = "public"
    ALLOWED_NETWORK = "allowed_network"
    ALLOWED_PRIVATE = "allowed_private"
    PRIVATE = "private"  # private, loopback or shared address
    NEVER = "never"  # link-local (cloud metadata), multicast, unspecified, reserved

    @property
    def is_allowed(self) -> bool:
        return self in (AddressReason.PUBLIC, AddressReason.ALLOWED_NETWORK, AddressReason.ALLOWED_PRIVATE)


@dataclass(frozen=True)
class AddressPolicy:
    allow_private: bool = False
    networks: Sequence[Network] = ()

    def judge(self, address: Address) -> AddressReason:
        """Whether a webhook may be sent to `address`; IPv4 inside IPv6 is judged as IPv4."""
        address = _unwrap(address)
        if any(address in network for network in self.networks):
            return AddressReason.ALLOWED_NETWORK
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            return AddressReason.NEVER
        if address.is_global:
            return AddressReason.PUBLIC
        if address.is_private or address.is_loopback:
            return AddressReason.ALLOWED_PRIVATE if self.allow_private else AddressReason.PRIVATE
        return AddressReason.NEVER


class ForbiddenAddress(Exception):
    """The receiver's name leads to an address that webhooks may not go to."""


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Addresses of `host`; OSError where there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections only to addresses that the policy allows."""

    def __init__(self, policy: AddressPolicy, resolve: Resolve = resolve) -> None:
        self._policy = policy
        self._resolve = resolve
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                texts = (await self._resolve(host, port))[:ADDRESSES_MAX]
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no answer for the name {host!r}") from error
        except OSError as error:
            raise httpcore.ConnectError(f"the name {host!r} is not known: {error}") from error
        for text in texts:  # one forbidden address condemns the name
            reason = self._policy.judge(ip_address(text.partition("%")[0]))
            if not reason.is_allowed:
                raise ForbiddenAddress(
                    f"{host} is {text}, a {reason.value} address; set PACELINE_NOTIFIER_ALLOWED_NETWORKS "
                    "or PACELINE_NOTIFIER_ALLOW_PRIVATE_ADDRESSES to send webhooks there"
                )
        problem: Exception = httpcore.ConnectError(f"the name {host!r} has no address")
        for text in texts:
            try:
                return await self._backend.connect_tcp(text, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
        raise problem

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


def _unwrap(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and address in NAT64:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address
