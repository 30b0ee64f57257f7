"""Files, folders, archives and standard input, as bounded streams with the name people know.

Nothing is unpacked to disk. Compressed data is read up to a bound, so that a bomb ends as a cut file.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from stat import S_ISREG
from typing import IO

from paceline.analysis.adapters.model import DOCUMENT_BYTES_MAX, UnusableInput

FILES_MAX = 200_000
FILE_BYTES_MAX = 2 << 30  # of a log; the rest is not read, and counted
DEPTH_MAX = 4  # containers inside containers: an incident's bundle holds archives of nodes, each a .tar.gz
STDIN = "-"
_GZIP, _BZIP2, _XZ, _ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"PK\x03\x04"
_TAR_AT = 257
_UNPACKERS = (
    "tarfile",
    "zipfile",
    "lzma",
    "_lzma",
    "zlib",
)  # imported for archives only; errors of their own


@dataclass
class Skipped:
    """What was not read, and why; bounded words, exact counts."""

    notes: list[str] = field(default_factory=list)
    files: int = 0

    def add(self, name: str, why: str) -> None:
        self.files += 1
        if len(self.notes) < 100:
            self.notes.append(f"{name}: {why}")


@dataclass(frozen=True)
class Source:
    """One input. `open` may be called once; `size` is that on disk, 0 where not known; `path` where it can
    be read again, None where it is packed."""

    name: str
    stream: IO[bytes]
    size: int = 0
    path: str | None = None

    def read_all(self) -> bytes:
        """Up to DOCUMENT_BYTES_MAX bytes. Raises `UnusableInput` where there are more."""
        size = min(self.size, DOCUMENT_BYTES_MAX)
        content = self.stream.read(size + 1)  # of what it says it is: a larger piece is claimed first
        if len(content) > size:
            content += self.stream.read(DOCUMENT_BYTES_MAX + 1 - len(content))
        if len(content) > DOCUMENT_BYTES_MAX:
            raise UnusableInput(f"{self.name} is larger than {DOCUMENT_BYTES_MAX >> 20} MiB and no log")
        return content


def find_sources(paths: Sequence[str], skipped: Skipped) -> Iterator[Source]:
    """Every file below `paths`, in sorted order, archives opened; unreadable ones go to `skipped`.

    The stream of a source is closed when the next one is asked for. Raises `UnusableInput` for a path
    that does not exist.
    """
    count = 0
    for path in paths:
        for source in _from_path(path, skipped):
            count += 1
            if count > FILES_MAX:
                skipped.add(source.name, f"more than {FILES_MAX} files: give a smaller folder")
                return
            yield source


def _from_path(path: str, skipped: Skipped) -> Iterator[Source]:
    if path == STDIN:
        yield from _opened(STDIN, sys.stdin.buffer, 0, 0, skipped)
        return
    if not os.path.exists(path):
        raise UnusableInput(f"{path} does not exist")
    if not os.path.isdir(path):
        yield from _from_file(path, os.path.basename(path), skipped)
        return
    place = path.rstrip("/") or "/"
    for folder, folders, files in os.walk(place):
        folders.sort()
        below = folder[len(place) :].lstrip("/")
        for file in sorted(files, key=_natural):
            yield from _from_file(os.path.join(folder, file), os.path.join(below, file), skipped)


def _from_file(path: str, name: str, skipped: Skipped) -> Iterator[Source]:
    try:
        about = os.stat(path)
        if not S_ISREG(about.st_mode):  # sockets, pipes, devices: reading one could wait for ever
            skipped.add(name, "not a regular file")
            return
        with open(path, "rb") as stream:
            yield from _opened(name, stream, about.st_size, 0, skipped, path)
    except FileNotFoundError:  # a link to nothing, or gone since the folder was listed
        skipped.add(name, "not a regular file")
    except OSError as error:
        skipped.add(name, error.strerror or str(error))


def _opened(
    name: str, stream: IO[bytes], size: int, depth: int, skipped: Skipped, path: str | None = None
) -> Iterator[Source]:
    """The source itself, or what is inside where it is compressed or an archive."""
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[type-var]
    head = buffered.peek(512)[:512]
    try:
        opener = _decompressor(head)
        if opener is not None and depth < DEPTH_MAX:
            inner = io.BufferedReader(opener(buffered))
            yield from _opened(_strip(name), inner, 0, depth + 1, skipped)
        elif head[_TAR_AT : _TAR_AT + 5] == b"ustar" and depth < DEPTH_MAX:
            yield from _tar(name, buffered, depth, skipped)
        elif head.startswith(_ZIP) and b"/data.pkl" not in head and depth < DEPTH_MAX:
            yield from _zip(name, buffered, depth, skipped)
        else:
            yield Source(name, buffered, size, path)
    except (OSError, EOFError, ValueError) as error:
        skipped.add(name, f"damaged or cut: {error}")
    except Exception as error:
        if type(error).__module__ not in _UNPACKERS:
            raise
        skipped.add(name, f"damaged or cut: {error}")


def _decompressor(head: bytes):  # type: ignore[no-untyped-def]
    if head.startswith(_GZIP):
        import gzip

        return lambda stream: gzip.GzipFile(fileobj=stream)
    if head.startswith(_BZIP2):
        import bz2

        return bz2.BZ2File
    if head.startswith(_XZ):
        import lzma

        return lzma.LZMAFile
    return None


def _tar(name: str, stream: IO[bytes], depth: int, skipped: Skipped) -> Iterator[Source]:
    import tarfile

    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            inner = archive.extractfile(member) if member.isfile() else None
            if inner is not None:
                yield from _opened(f"{name}/{member.name}", inner, member.size, depth + 1, skipped)


def _zip(name: str, stream: IO[bytes], depth: int, skipped: Skipped) -> Iterator[Source]:
    import zipfile

    seekable = stream if stream.seekable() else io.BytesIO(stream.read(DOCUMENT_BYTES_MAX))
    with zipfile.ZipFile(seekable) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as inner:
                    yield from _opened(f"{name}/{info.filename}", inner, info.file_size, depth + 1, skipped)


def _strip(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem if suffix in (".gz", ".bz2", ".xz") else name


def _natural(name: str) -> tuple[object, ...]:
    """Sort key that puts rank_2 before rank_10."""
    parts: list[object] = []
    digits = ""
    for character in name:
        if character.isdecimal():
            digits += character
            continue
        if digits:
            parts += [("", int(digits))]
            digits = ""
        parts += [(character, 0)]
    return (*parts, ("", int(digits))) if digits else tuple(parts)
