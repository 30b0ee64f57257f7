"""Makes the calls of a trace in this process, with descriptors as raw bytes; one thread makes them all."""

import ctypes
import os
import struct
from typing import Any

from tests.unit.nccl.calls import OFFSETS, OWN_PID, TYPES, WIDTHS, Call, Trace

DESCRIPTOR_BYTES = 112  # of version 5
_pointer, _int = ctypes.c_void_p, ctypes.c_int
_INIT = ctypes.CFUNCTYPE(
    _int, _pointer, ctypes.c_uint64, _pointer, ctypes.c_char_p, _int, _int, _int, _pointer
)
_START = ctypes.CFUNCTYPE(_int, _pointer, _pointer, _pointer)
_STOP = ctypes.CFUNCTYPE(_int, _pointer)
_RECORD = ctypes.CFUNCTYPE(_int, _pointer, _int, _pointer)


class PluginCalls:
    """A plugin of version 5, loaded as NCCL loads it. A call that does not succeed raises AssertionError."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        table = (ctypes.c_void_p * 6).in_dll(self._library, "ncclProfiler_v5")
        self._init, self._start, self._stop, self._record, self._finalize = (
            kind(table[place] or 0)
            for place, kind in enumerate((_INIT, _START, _STOP, _RECORD, _STOP), start=1)
        )
        self._mask = ctypes.c_int()
        self._handles: dict[int, int] = {0: 0}
        self._texts: dict[str, Any] = {}  # NCCL's are static

    def make(self, trace: Trace) -> None:
        for call in trace.take().calls:
            assert getattr(self, f"_make_{call['call']}")(call) == 0, call

    def _make_init(self, call: Call) -> int:
        context = ctypes.c_void_p()
        result: int = self._init(
            ctypes.addressof(context), call["hash"], ctypes.addressof(self._mask), call["name"].encode(),
            call["nodes"], call["nranks"], call["rank"], None,
        )  # fmt: skip
        self._handles[call["context"]] = context.value or 0
        return result

    def _make_sample(self, call: Call) -> int:
        self._handles[call["handle"]] = self._mask.value
        return 0

    def _make_start(self, call: Call) -> int:
        kind, handle = TYPES[call["type"]], ctypes.c_void_p()
        asked = self._handles[call["mask"]] if call["mask"] else -1
        result = 0
        if asked & kind:
            data = bytearray(b"\xa5" * DESCRIPTOR_BYTES)  # what is not set is garbage, as on NCCL's stack
            struct.pack_into("<QQi", data, 0, kind, self._handles[call["parent"]], 0)
            for name, value in call["fields"].items():
                width, offset = OFFSETS[call["type"]][name]
                struct.pack_into(WIDTHS[width], data, offset, self._number(width, value))
            buffer = (ctypes.c_char * len(data)).from_buffer(data)
            result = self._start(
                self._handles[call["context"]], ctypes.addressof(handle), ctypes.addressof(buffer)
            )
        self._handles[call["handle"]] = handle.value or 0
        return result

    def _make_record(self, call: Call) -> int:
        handle, argument = self._handles[call["handle"]], ctypes.c_uint64(call["argument"] or 0)
        given = ctypes.addressof(argument) if call["argument"] is not None else None
        return int(self._record(handle, call["state"], given)) if handle else 0

    def _make_stop(self, call: Call) -> int:
        handle = self._handles[call["handle"]]
        return int(self._stop(handle)) if handle else 0

    def _make_finalize(self, call: Call) -> int:
        return int(self._finalize(self._handles[call["context"]]))

    def _number(self, width: str, value: Any) -> int:
        if width == "s":
            text = self._texts.setdefault(value, ctypes.create_string_buffer(value.encode()))
            return ctypes.addressof(text)
        if width == "h":
            return self._handles[value]
        return os.getpid() if value == OWN_PID else int(value)
