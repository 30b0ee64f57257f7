"""That all members of a prepared generation are there and follow one plan."""

from typing import Any

from paceline.trainer.switch.errors import PrepareFailed

_DIGEST_BYTES = 32


def confirm(prepared: Any, rank: int, digest: str) -> None:
    """Every new member is there and follows the same plan, or PrepareFailed on all of them.

    Also the first collective on each connection: lazy ones are made now and not in the switch.
    """
    import torch

    mine = torch.frombuffer(bytearray(_digest_bytes(digest)), dtype=torch.uint8)
    for inner in prepared.inner.values():
        everybody = [torch.zeros(_DIGEST_BYTES, dtype=torch.uint8) for _ in range(inner.size())]
        inner.allgather([everybody], [mine]).wait()
        others = [at for at, seen in enumerate(everybody) if not torch.equal(seen, mine)]
        if others or not digest:
            raise PrepareFailed(f"rank {rank} and members {others[:8]} of a new group do not follow one plan")


def _digest_bytes(digest: str) -> bytes:
    try:
        content = bytes.fromhex(digest)
    except ValueError:
        content = b""
    return content[:_DIGEST_BYTES].ljust(_DIGEST_BYTES, b"\0")
