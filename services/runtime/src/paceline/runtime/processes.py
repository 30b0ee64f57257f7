"""Ends a program with all that it started."""

import asyncio
import contextlib
import os
import signal

REAP_S = 5.0


async def end_group(process: asyncio.subprocess.Process) -> None:
    """Kill `process`, the leader of its own session, with its children; one that cannot be killed is left
    behind after REAP_S. Harmless where it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_S):
            await process.wait()
