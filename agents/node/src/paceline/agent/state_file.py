"""One small file that is replaced as a whole, when its content changes."""

from pathlib import Path

FILE_BYTES_MAX = 16 << 20


class StateFile:
    """Neither reading nor writing ever raises; `failures` counts what could not be kept."""

    def __init__(self, path: Path) -> None:
        self.failures = 0
        self._path = path
        self._written: bytes | None = None

    def write(self, data: bytes) -> None:
        """Replace the content unless it is this already."""
        if data == self._written:
            return
        if len(data) > FILE_BYTES_MAX:
            self.failures += 1
            return
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(data)
            temporary.replace(self._path)
        except OSError:
            self.failures += 1
        else:
            self._written = data

    def read(self) -> bytes:
        """The content, empty where there is none."""
        try:
            with open(self._path, "rb") as file:
                return file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            return b""
        except OSError:
            self.failures += 1
            return b""
