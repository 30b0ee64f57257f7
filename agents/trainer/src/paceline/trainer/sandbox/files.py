"""A recording as one private file: a line of JSON, then raw bytes. Nothing in it is ever executed."""

import hashlib
import itertools
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO

from paceline.trainer.sandbox.errors import RecordingRefused
from paceline.trainer.sandbox.recording import Call, GroupRecording, Output, Recording

MAGIC = b"paceline recording 1\n"
HEADER_BYTES_MAX = 64 << 20
FILE_BYTES_MAX = 64 << 30
LIFE_S = 7 * 86_400.0
LIFE_S_MAX = 30 * 86_400.0
SWEEP_FILES_MAX = 4096  # of one folder that are looked at
PRIVATE = 0o600
DAMAGED = (KeyError, TypeError, ValueError, OverflowError, RecursionError)


def save(recording: Recording, path: Path, life_s: float = LIFE_S, now_s: float | None = None) -> int:
    """Write it for this user alone, in place of what was there; bytes written.

    What else lies in its folder and has expired is removed. ValueError for a life above LIFE_S_MAX.
    """
    now_s = time.time() if now_s is None else now_s
    if not 0 < life_s <= LIFE_S_MAX:
        raise ValueError(f"life_s is {life_s}, expected up to {LIFE_S_MAX}")
    sweep(path.parent, now_s)
    header: dict[str, Any] = {
        "role": recording.role,
        "rank": recording.rank,
        "size": recording.size,
        "steps": recording.steps,
        "expires_unix_s": now_s + life_s,
        "groups": [
            {
                "key": group.key,
                "rank": group.rank,
                "size": group.size,
                "calls": [
                    [call.signature, [[out.dtype, list(out.shape), out.blob] for out in call.outputs]]
                    for call in group.calls
                ],
            }
            for group in recording.groups
        ],
        "blobs": [[len(blob), hashlib.sha256(blob).hexdigest()] for blob in recording.blobs],
    }
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE)
    try:
        with open(fd, "wb") as file:
            file.write(MAGIC + json.dumps(header, separators=(",", ":")).encode() + b"\n")
            for blob in recording.blobs:
                file.write(blob)
            written = file.tell()
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return written


def load(path: Path, now_s: float | None = None) -> Recording:
    """A recording of this user; RecordingRefused where it is not, and an expired one is removed."""
    now_s = time.time() if now_s is None else now_s
    with _open(path) as file:
        status = os.fstat(file.fileno())
        _refuse_foreign(path, status)
        try:
            header = _header(path, file)
            if _has_expired(header, now_s):
                _remove(path, status)
                raise RecordingRefused(f"{path}: it had expired and was removed; record again")
            sizes = [(int(size), str(digest)) for size, digest in header["blobs"]]
            if min((size for size, _ in sizes), default=0) < 0:
                raise ValueError("a negative size")
            if sum(size for size, _ in sizes) + file.tell() != status.st_size:
                raise RecordingRefused(f"{path}: it has not the size that its head says")
            blobs = [_blob(path, file.read(size), digest) for size, digest in sizes]
            return _recording(header, blobs)
        except DAMAGED as error:
            raise RecordingRefused(f"{path}: its head is damaged ({error})") from error


def sweep(folder: Path, now_s: float) -> int:
    """Remove recordings of this user in `folder` whose time is over, and what a killed writer left; how many.

    Only what begins as a recording is ever removed. A head that cannot be read counts from the last write.
    """
    removed = 0
    try:
        entries = list(itertools.islice(os.scandir(folder), SWEEP_FILES_MAX))
    except OSError:
        return 0
    for entry in entries:
        path = Path(entry.path)
        try:
            with _open(path) as file:
                status = os.fstat(file.fileno())
                _refuse_foreign(path, status)
                try:
                    expired = _has_expired(_header(path, file), now_s)
                except DAMAGED:
                    expired = status.st_mtime + LIFE_S < now_s
            removed += expired and _remove(path, status)
        except (RecordingRefused, OSError):
            continue  # no recording, or not ours
    return removed


def _open(path: Path) -> BinaryIO:
    try:
        # Not blocking: a pipe in the folder of recordings would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RecordingRefused(f"{path}: {error.strerror}") from error
    try:
        return open(fd, "rb")
    except OSError as error:  # a folder
        os.close(fd)
        raise RecordingRefused(f"{path}: {error.strerror}") from error


def _header(path: Path, file: BinaryIO) -> dict[str, Any]:
    """RecordingRefused where it is no recording, one of DAMAGED where its head cannot be read."""
    if file.read(len(MAGIC)) != MAGIC:
        raise RecordingRefused(f"{path}: this is no recording")
    header: dict[str, Any] = json.loads(file.readline(HEADER_BYTES_MAX))
    return header


def _has_expired(header: dict[str, Any], now_s: float) -> bool:
    """Also where it says that it lives longer than any may."""
    expires_s = float(header["expires_unix_s"])
    return not now_s <= expires_s <= now_s + LIFE_S_MAX


def _remove(path: Path, status: os.stat_result) -> bool:
    """Unless another file has taken its name meanwhile."""
    try:
        now = os.lstat(path)
        if (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
            return False
        path.unlink()
    except OSError:
        return False
    return True


def _refuse_foreign(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
        raise RecordingRefused(f"{path}: expected a file of at most {FILE_BYTES_MAX} bytes")
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RecordingRefused(
            f"{path}: owner {status.st_uid}, mode {status.st_mode & 0o777:o}; expected this user's, mode 600"
        )


def _blob(path: Path, data: bytes, digest: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != digest:
        raise RecordingRefused(f"{path}: its tensors are damaged; record again")
    return data


def _recording(header: dict[str, Any], blobs: list[bytes]) -> Recording:
    groups = tuple(
        GroupRecording(
            str(group["key"]),
            int(group["rank"]),
            int(group["size"]),
            tuple(
                Call(
                    str(signature),
                    tuple(
                        Output(str(dtype), tuple(map(int, shape)), _index(blob, blobs))
                        for dtype, shape, blob in outputs
                    ),
                )
                for signature, outputs in group["calls"]
            ),
        )
        for group in header["groups"]
    )
    return Recording(
        str(header["role"]), int(header["rank"]), int(header["size"]), int(header["steps"]), groups, blobs
    )


def _index(blob: Any, blobs: list[bytes]) -> int:
    number = int(blob)
    if not 0 <= number < len(blobs):
        raise ValueError(f"blob {number} of {len(blobs)}")
    return number
