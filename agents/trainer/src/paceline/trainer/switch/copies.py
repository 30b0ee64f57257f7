"""A leaver's protected copy to its joiner: the bytes that were copied after the step for any recovery.

So nothing reads live tensors in the switch, and the joiner can give the copy to others from then on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.trainer.switch.errors import TransferFailed
from paceline.trainer.switch.transfer import Pair

_ARRIVED, _DAMAGED = 1, 0


class CopyTransfer(Pair):
    """One end; the parts are flat uint8 tensors of the host, described by a JSON header."""

    def give(self, step: int, header: Mapping[str, Any], parts: Sequence[Any]) -> None:
        """Send the copy of `step` and wait until it has arrived. TransferFailed, RuntimeError."""
        self.announce(step)
        self._send_bytes(json.dumps(header, separators=(",", ":")).encode())
        works = [self._group.send([part], self._peer, 0) for part in parts if part.numel()]
        for work in works:
            work.wait(self._limit)
        if int(self._receive(1)[0]) != _ARRIVED:
            raise TransferFailed("the joiner has not taken the state")

    def take(
        self,
        wait_s: float,
        room: Callable[[Mapping[str, Any]], Sequence[Any]],
        is_whole: Callable[[Mapping[str, Any]], bool],
    ) -> tuple[int, Mapping[str, Any]]:
        """The step after which the leaver's state was taken, and its header, once `is_whole` says so.

        `room` gives the tensors to receive into. SwitchCancelled, TransferFailed, RuntimeError.
        """
        step = self.await_state(wait_s)
        try:
            header = json.loads(self._receive_bytes())
            parts = room(header)
            works = [self._group.recv([part], self._peer, 0) for part in parts if part.numel()]
            for work in works:
                work.wait(self._limit)
            whole = is_whole(header)
        except (ValueError, KeyError, TypeError) as error:
            raise TransferFailed(f"the leaver's header cannot be read: {error!r}") from error
        self._send(_ARRIVED if whole else _DAMAGED)
        if not whole:
            raise TransferFailed("the leaver's state arrived damaged; nothing of it may be used")
        return step, header
