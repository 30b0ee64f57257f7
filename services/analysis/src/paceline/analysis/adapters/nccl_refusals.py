"""What a host or driver refuses NCCL while it sets up: memory, queue pairs, multicast, peers' handles.

Settings are `setup_refused`, one of `files`, `shared_memory`, `queue_pair`, `registration`, `multicast`,
`handle`, `endpoint`, `driver`; `text` is the warning. An error of CUDA that a GPU gives by itself is a
`ProcessFault`, as torch's are. The chain below (`proxy.cc:1495 ... retcode 1`, `-> 3`, closed sockets)
repeats it and is not read.
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block
from paceline.analysis.adapters.nccl_log import device_base
from paceline.analysis.adapters.process_errors import cuda_kind
from paceline.analysis.facts import Fact, ProcessFault, ProcessFaultKind, SettingSeen

REFUSED = "setup_refused"
K = ProcessFaultKind
_SHARED = re.compile(
    r"failed to extend /dev/shm|Error while (?:creating|attaching to) shared memory segment|"
    r"Call to (?:posix_fallocate|ftruncate|shm_open) failed|shared memory.{0,80}No space left"
)
_QUEUE = re.compile(r"Call to ibv_modify_qp failed|ibv_modify_qp.{0,80}(?:timed out|unreachable|Invalid)")
_REGISTRATION = re.compile(
    r"Call to ibv_(?:reg_\w*mr\w*|create_qp|create_cq|alloc_pd|open_device|create_srq)(?: failed| returned)|"
    r"ibv_reg_\w*mr\w* failed|[Uu]nable to register memory|NET/OFI Unable to register memory"
)
_MULTICAST = re.compile(
    r"Failed to (?:bind|create|add|attach|map).{0,60}(?:NVLS|[Mm]ulticast)|NVLS.{0,80}CUDA error 401|"
    r"cuMulticast\w+.{0,60}(?:failed|error)"
)
_ENDPOINT = re.compile(
    r"NET/OFI (?:Creating new endpoint|Couldn't (?:open|create|allocate|enable)|"
    r"Unable to (?:insert|open|create)|Failed to (?:initiali[sz]e|create|open)|Only EFA provider).{0,200}"
)
_FILES_MAX = re.compile(r"Too many open files")
_HANDLE = re.compile(
    r"cu(?:MemImportFromShareableHandle|MemExportToShareableHandle|IpcOpenMemHandle|MemSetAccess)|"
    r"(?:cuda|hip)Ipc(?:Open|Get)MemHandle|[Ii]mport.{0,40}(?:fabric|shareable) handle"
)
_CUDA = re.compile(r"(?:Cuda|CUDA|HIP|Hip) (?:failure|error) ?(?P<code>\d{1,4})? ?'(?P<text>[^']{3,200})'")
_FILES = re.compile(r"(?P<file>[\w/]{1,80}\.(?:cc|c|cu|h|hpp)):\d{1,6}")
_TRANSPORT = ("p2p.cc", "nvls.cc", "mnnvl.cc", "shm.cc", "coll_net.cc")
_HANDLE_ERRORS = re.compile(
    r"invalid device ordinal|invalid resource handle|peer access|operation not permitted|not supported|"
    r"mapping of buffer object failed|invalid argument"
)
_NOTHING = re.compile(r"operation in progress|driver shutting down|context is destroyed")


class NcclRefusals:
    """Warnings that name what was refused."""

    name = "nccl refusals"
    needles = (
        "shared memory", "dev/shm", "posix_fallocate", "ftruncate", "shm_open", "ibv_", "ulticast", "NVLS",
        "NET/OFI", "open files", "Handle", "Cuda failure", "CUDA error", "HIP failure", "register memory",
    )  # fmt: skip

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if "NCCL WARN" not in text:
            return
        warning = text.partition("NCCL WARN")[2].strip()
        kind = _kind(warning)
        error = _CUDA.search(warning)
        if kind is None and error and not _NOTHING.search(error["text"]):
            fault = cuda_fault(error["text"])
            files = {found["file"].rpartition("/")[2] for found in _FILES.finditer(text)}
            hard = (K.CUDA_ECC, K.CUDA_CONTAINED, K.CUDA_ILLEGAL, K.CUDA_MEMORY)
            if fault not in hard and files & set(_TRANSPORT) and _HANDLE_ERRORS.search(error["text"]):
                kind = "handle"
            elif fault is K.CUDA_SETUP:
                kind = "driver"
            else:
                yield ProcessFault(**device_base(block), kind=fault, text=warning[:500])
        if kind is not None:
            yield SettingSeen(**device_base(block), name=REFUSED, value=kind, text=warning[:500])


def cuda_fault(text: str) -> ProcessFaultKind:
    """What an error's name says, in CUDA's or HIP's words."""
    return cuda_kind(f"CUDA error: {text}") or K.CUDA_OTHER


def _kind(warning: str) -> str | None:
    for kind, pattern in (
        ("files", _FILES_MAX),
        ("shared_memory", _SHARED),
        ("queue_pair", _QUEUE),
        ("registration", _REGISTRATION),
        ("endpoint", _ENDPOINT),
        ("multicast", _MULTICAST),
        ("handle", _HANDLE),
    ):
        if pattern.search(warning):
            return kind
    return None
