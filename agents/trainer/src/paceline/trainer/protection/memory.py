"""Host memory of the slots: allocated once, pinned where an accelerator copies into it."""

import ctypes
import sys
from typing import Any

ALIGN_BYTES = 64
PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20
MADV_HUGEPAGE = 14  # linux/mman-common.h
_LIBC = ctypes.CDLL(None)


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, without numpy; the caller keeps the tensor alive."""
    length = tensor.numel() * tensor.element_size()
    if not length:
        return memoryview(b"")
    return memoryview((ctypes.c_uint8 * length).from_address(tensor.data_ptr())).cast("B")


def ask_for_huge_pages(block: Any) -> None:
    """Before it is touched; a wish. The system takes a killed process's memory back before anybody can know
    of the death: 381 ms for 1 GB in small pages, 79 in huge ones (2 cores, medians of 7 in turn)."""
    start = block.data_ptr() + -block.data_ptr() % PAGE_BYTES
    length = block.data_ptr() + block.numel() - start
    if length >= HUGE_PAGE_BYTES and sys.platform == "linux":
        _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_HUGEPAGE)


class Buffer:
    """One growing block of host memory. Grows only when a state does, in steady training never."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._block: Any = None
        self.used = 0

    @property
    def capacity(self) -> int:
        """Bytes allocated."""
        return 0 if self._block is None else int(self._block.numel())

    def reserve(self, length: int) -> Any:
        """The first `length` bytes, rounded up to the alignment; what was in it is lost if it grows."""
        import torch

        if length > self.capacity:
            # An eighth more, since the JSON of a state varies by some digits.
            wanted = length + length // 8
            wanted += -wanted % ALIGN_BYTES
            self._block = torch.empty(wanted, dtype=torch.uint8, pin_memory=self._pinned)
            if not self._pinned:
                ask_for_huge_pages(self._block)
            self._block.zero_()
        self.used = length
        return self.content()

    def content(self) -> Any:
        """The used bytes as a flat uint8 tensor; a view, also when nothing was ever reserved."""
        import torch

        if self._block is None:
            return torch.empty(0, dtype=torch.uint8)
        return self._block[: self.used]


def pointer_of(tensor: Any) -> int:
    """Where a tensor lies that is one piece of plain host memory; 0 of any other."""
    return int(tensor.data_ptr()) if tensor.is_cpu and tensor.is_contiguous() else 0


def copy_memory(target: int, source: int, length: int) -> None:
    """Between addresses, without torch's thread pool and without the interpreter's lock."""
    ctypes.memmove(target, source, length)


def copy_to_host(tensor: Any, target: Any) -> None:
    """Copy a tensor that has no such pointer to flat host bytes."""
    target.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
