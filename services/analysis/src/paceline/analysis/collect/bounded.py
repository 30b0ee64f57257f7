"""One item, in bounded time and size; a failure is words, never an exception."""

import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ITEM_BYTES_MAX = 64 << 20
KILL_S = 1.0


@dataclass(frozen=True)
class Item:
    """`content` None: not got, and `why` says the reason."""

    name: str  # path inside the archive
    content: bytes | None
    why: str = ""


def read_bounded(name: str, read: Callable[[], bytes], limit_s: float) -> Item:
    """`read` in a thread of its own: files of /proc can block as long as the kernel does."""
    result: list[Item] = []

    def work() -> None:
        try:
            result.append(Item(name, read()[:ITEM_BYTES_MAX]))
        except OSError as error:
            result.append(Item(name, None, error.strerror or str(error)))
        except ValueError as error:
            result.append(Item(name, None, str(error)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    return result[0] if result else Item(name, None, f"no answer in {limit_s:g} s")


def run_bounded(name: str, command: Sequence[str], limit_s: float) -> Item:
    """What a program prints. One that cannot be killed is left behind: its driver call may never return."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        except OSError as error:
            return Item(name, None, f"{command[0]}: {error.strerror or error}")
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            try:
                process.wait(KILL_S)
            except subprocess.TimeoutExpired:
                return Item(name, None, f"{command[0]} hangs and cannot be killed: its driver may be stuck")
            return Item(name, None, f"{command[0]} gave no answer in {limit_s:g} s")
        output.seek(0)
        content = output.read(ITEM_BYTES_MAX)
        errors.seek(0)
        words = errors.read(400).decode("utf-8", "replace").strip().splitlines()
    if status or not content:
        return Item(name, None, f"{command[0]}: {words[-1] if words else f'exit status {status}'}")
    return Item(name, content)
