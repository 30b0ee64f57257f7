"""Host memory of the slots: allocated once, pinned where an accelerator copies into it."""

import ctypes
from typing import Any

ALIGN_BYTES = 64


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, without numpy; the caller keeps the tensor alive."""
    length = tensor.numel() * tensor.element_size()
    if not length:
        return memoryview(b"")
    return memoryview((ctypes.c_uint8 * length).from_address(tensor.data_ptr())).cast("B")


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
            self._block = torch.zeros(wanted, dtype=torch.uint8, pin_memory=self._pinned)
        self.used = length
        return self.content()

    def content(self) -> Any:
        """The used bytes as a flat uint8 tensor; a view, also when nothing was ever reserved."""
        import torch

        if self._block is None:
            return torch.empty(0, dtype=torch.uint8)
        return self._block[: self.used]


def copy_to_host(tensor: Any, target: Any) -> None:
    """Copy one tensor to flat host bytes, without torch's thread pool where it is plain host memory."""
    length = target.numel()
    if tensor.is_cpu and tensor.is_contiguous():
        ctypes.memmove(target.data_ptr(), tensor.data_ptr(), length)  # releases the GIL
    else:
        target.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
