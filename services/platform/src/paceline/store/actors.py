"""Who makes a change, and through what."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Actor:
    """`type` is system or token; `source` the service, api or console."""

    name: str
    type: str
    source: str


def system(source: str) -> Actor:
    """A service acting by itself."""
    return Actor(name="system", type="system", source=source)
