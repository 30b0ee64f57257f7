"""The page of this training process. Standard library only.

The methods of `Page` are those of the native type itself, so that a call on the hot path passes
through no Python frame. None of them raises: wrong arguments, stale tickets and full tables are
counted in the page header, where the agent sees them.
"""

from __future__ import annotations

from paceline.probe import _native
from paceline.probe.errors import PageUnavailableError

OPEN_OPS_MAX = _native.OPEN_OPS_MAX


def _plain(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode()


class Page(_native.Page):
    """One sealed page per process: create it before `init_process_group`, close it at the end.

    `page_fd` is a read-only descriptor of the page and `control_fd` a writable one of the control
    page; both go to the agent and both are -1 in a forked child, where all calls do nothing. `address` is
    where this process has mapped the page, for kernels that write counters themselves; 0 in such a child.

    - `open_communicator(comm, instance, comm_rank, nranks, global_rank, sources)`: a slot, -1 when all
      64 are in use (counted).
    - `enter(slot, function, dtype, reduce_op, peer, count, bytes, signature_count)`: a ticket, -1 when
      nothing was counted. SEND, RECV and RECV_ANY (peer -2) are numbered per pair, everything else
      advances the round. `signature_count` is `count` where all members must agree on it, else 0.
    - `returned(ticket)`, `complete(ticket, failed=0)`: from any thread, in any order.
    - `settler(ticket, followed)`: a callable for a future's `add_done_callback`; it completes the ticket,
      failed where `future.value()` raises, and takes it out of the dict `followed`.
    - `describe(ticket, algorithm, protocol, channels)` and `progress(slot, direction, peer, group, channel,
      peer_slot, posted, count, bytes, wait_ns, early_wait_ns, state)`: for sources that see inside an
      operation; all numbers of `progress` are increments (see paceline_advance_v1).
    - `set_phase(phase, name)`, `set_step(step)`, `set_host_wait(kind, name, rank)` (kind NONE ends it),
      `add_paced(ns)`, `beat()` (the Python heartbeat), `set_identity(...)`, `add_flags(slot, flags)`,
      `count_error()` (the hook's own errors), `finish()` (orderly end), `close()` (stops the native
      heartbeat; later calls are ignored).
    - `read_control()`: (detail, pace_ns, pace_expires_ns, generation) as the agent wrote them; pacing
      counts only until `pace_expires_ns` of CLOCK_MONOTONIC.
    """

    __slots__ = ()

    @classmethod
    def create(
        cls,
        job: str,
        attempt: str,
        global_rank: int,
        world_size: int,
        local_rank: int,
        framework: str,
    ) -> Page:
        """A live page with its native heartbeat; PageUnavailableError where the kernel refuses one.

        Ranks are -1 and `world_size` 0 while unknown. Strings are cut to the page's fields.
        """
        try:
            return cls(_plain(job), _plain(attempt), global_rank, world_size, local_rank, _plain(framework))
        except OSError as error:
            raise PageUnavailableError(
                error.errno, f"no probe page: {error.strerror}; training goes on unobserved"
            ) from error
