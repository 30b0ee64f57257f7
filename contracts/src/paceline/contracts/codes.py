"""Small closed vocabularies that travel as one byte.

Numbers are part of the wire and of the memory pages: append, never renumber. 0 always means
"unknown or not applicable".
"""

from enum import IntEnum, IntFlag


class Function(IntEnum):
    """Which operation a rank called."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    ALL_TO_ALL = 6
    GATHER = 7
    SCATTER = 8
    BARRIER = 9
    SEND = 10
    RECV = 11
    RECV_ANY = 12


class OpKind(IntEnum):
    """How an operation is numbered: collectives by round, point-to-point by pair sequence."""

    UNKNOWN = 0
    COLLECTIVE = 1
    POINT_TO_POINT = 2


class DType(IntEnum):
    """Element types, in the order of torch's own scalar type list where one exists."""

    UNKNOWN = 0
    UINT8 = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    BFLOAT16 = 7
    FLOAT32 = 8
    FLOAT64 = 9
    COMPLEX64 = 10
    COMPLEX128 = 11
    BOOL = 12
    FLOAT8_E4M3 = 13
    FLOAT8_E5M2 = 14


class ReduceOp(IntEnum):
    UNKNOWN = 0
    SUM = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    AVG = 5
    BAND = 6
    BOR = 7
    BXOR = 8
    PREMUL_SUM = 9


class Algorithm(IntEnum):
    UNKNOWN = 0
    RING = 1
    TREE = 2
    COLLNET = 3
    NVLS = 4
    PAT = 5


class Protocol(IntEnum):
    UNKNOWN = 0
    SIMPLE = 1
    LL = 2
    LL128 = 3


class OpState(IntEnum):
    """Life of one operation as its own rank saw it."""

    EMPTY = 0
    ENTERED = 1
    STARTED = 2
    COMPLETED = 3
    FAILED = 4


class Phase(IntEnum):
    """What the training script says it is doing; only TRAIN is judged by the short limits."""

    UNKNOWN = 0
    INIT = 1
    TRAIN = 2
    COMPILE = 3
    CHECKPOINT = 4
    EVALUATE = 5
    DATA = 6
    FINISH = 7


class ProcessState(IntEnum):
    """State of a training process as the kernel reports it (`/proc/PID/stat`, third field)."""

    UNKNOWN = 0
    RUNNING = 1
    SLEEPING = 2
    DISK_SLEEP = 3
    STOPPED = 4
    TRACED = 5
    ZOMBIE = 6
    GONE = 7


class ExitKind(IntEnum):
    """Why a training process is no longer there."""

    NONE = 0
    CLEAN = 1
    ERROR = 2
    SIGNAL = 3
    UNKNOWN = 4


class HostWait(IntEnum):
    """A blocking wait outside any collective, set by the trainer hook."""

    NONE = 0
    STORE = 1
    BARRIER = 2
    CHECKPOINT = 3
    DATALOADER = 4
    BOOTSTRAP = 5


class Source(IntFlag):
    """Who writes a frame; several may be live for one communicator, one owns its rounds."""

    NONE = 0
    TORCH_HOOK = 1
    NCCL_PROFILER = 2
    NCCL_SHIM = 4
    KERNEL = 8
    SIMULATOR = 16


class FrameFlag(IntFlag):
    """What a reader must know before it believes the numbers of a frame."""

    NONE = 0
    PARTIAL = 1  # the writer died or stalled inside a write
    COMPLETION_UNOBSERVABLE = 2  # the source cannot see completion, `completed` means nothing
    COUNTS_UNOBSERVABLE = 4  # SendCount and RecvCount are not seen by this source
    CLOSED = 8  # the communicator was destroyed by its owner
    DROPPED = 16  # at least one operation was not recorded
    KERNEL_STARTED = 32  # the GPU has begun an operation of this communicator; the agent says so


class TransferState(IntEnum):
    """What one direction of a channel or edge does; from 8 on the numbers of NCCL's proxy steps."""

    IDLE = 0  # or not seen
    MOVING = 1
    PEER_WAIT = 2  # waits for the peer, or for the network
    SEND_GPU_WAIT = 8  # for the own GPU to deliver data
    SEND_WAIT = 9  # handed to the network, which has not taken it
    RECV_WAIT = 10  # for data of the peer
    RECV_FLUSH_WAIT = 11
    RECV_GPU_WAIT = 12  # for the own GPU to take data
    SEND_PEER_WAIT = 20  # for room at the peer


class DetailLevel(IntEnum):
    """What the agent asks the probe to record, through the control page."""

    OFF = 0
    ROUNDS = 1
    EDGES = 2
    FULL = 3
