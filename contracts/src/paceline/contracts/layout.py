"""The probe pages, version 1: one table for C, numpy and the tests.

A page is one sealed memfd per training process:

    0                process header              4,096 bytes
    4,096            64 frames                   stride 1,216 (1,184 used, cache line padding)
    81,920           64 detail blocks            stride 45,056: edges, peers, rounds, round times

The control page is a second memfd of 4,096 bytes that only the agent writes. All numbers are
little endian. Offsets are part of the contract: change nothing, append in `spare` only
(docs/adr/0003-probe-pages.md).
"""

from dataclasses import dataclass

PAGE_MAGIC = 0x31504C50  # "PLP1"
FRAME_MAGIC = 0x31464C50  # "PLF1"
CONTROL_MAGIC = 0x31434C50  # "PLC1"
LAYOUT_VERSION = 1

COMMUNICATORS_MAX = 64
CHANNELS_MAX = 64
EDGES_MAX = 16
PEERS_MAX = 64
ROUNDS_NEWEST_MAX = 128
ROUNDS_KEPT_MAX = 32  # per level
KEPT_LEVELS = (0, 4, 8, 12)
ROUNDS_MAX = ROUNDS_NEWEST_MAX + ROUNDS_KEPT_MAX * len(KEPT_LEVELS)


@dataclass(frozen=True)
class Field:
    """One field: `type` is a numpy type code (u1..u8, i4, S<n>), `count` an array length."""

    name: str
    offset: int
    type: str
    count: int
    comment: str

    @property
    def item_bytes(self) -> int:
        return int(self.type[1:])

    @property
    def bytes(self) -> int:
        return self.item_bytes * self.count


@dataclass(frozen=True)
class Layout:
    """A C struct: fields may not overlap, every gap is a named spare."""

    name: str
    size: int
    comment: str
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field:
        """The field called `name`; KeyError where there is none."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"{self.name} has no field {name!r}")


def _layout(name: str, size: int, comment: str, *rows: tuple[str, str, int, str]) -> Layout:
    """Place fields one after another; raises ValueError where they do not fill `size` exactly."""
    fields = []
    offset = 0
    for field_name, type_code, count, field_comment in rows:
        field = Field(field_name, offset, type_code, count, field_comment)
        if offset % min(field.item_bytes, 8) and type_code[0] != "S":
            raise ValueError(f"{name}.{field_name} at {offset} is not aligned")
        fields.append(field)
        offset += field.bytes
    if offset != size:
        raise ValueError(f"{name} fills {offset} bytes, expected {size}")
    return Layout(name, size, comment, tuple(fields))


PROCESS = _layout(
    "process_header",
    4096,
    "one per training process, written before init_process_group",
    ("magic", "u4", 1, "PAGE_MAGIC"),
    ("version", "u2", 1, "LAYOUT_VERSION"),
    ("header_bytes", "u2", 1, "4096"),
    ("page_bytes", "u8", 1, "size of the whole memfd"),
    ("lock", "u4", 1, "sequence lock of this header; odd while written"),
    ("sources", "u4", 1, "Source flags of the writers that attached"),
    ("job", "S128", 1, "job id, UTF-8, NUL padded"),
    ("attempt", "S64", 1, "attempt id, UTF-8, NUL padded"),
    ("framework", "S64", 1, "for example 'torch 2.13.0'"),
    ("phase_name", "S32", 1, "the script's own word for the phase"),
    ("host_wait_name", "S64", 1, "what a host wait waits for"),
    ("global_rank", "i4", 1, "-1 while unknown"),
    ("world_size", "i4", 1, "0 while unknown"),
    ("local_rank", "i4", 1, "-1 while unknown"),
    ("pid", "i4", 1, "as this process sees itself"),
    ("pid_start", "u8", 1, "/proc/PID/stat field 22, clock ticks since boot"),
    ("created_ns", "u8", 1, "CLOCK_MONOTONIC"),
    ("native_beats", "u8", 1, "heartbeat of a thread that needs no GIL, 10 a second"),
    ("native_beat_ns", "u8", 1, "CLOCK_MONOTONIC of the last one"),
    ("python_beats", "u8", 1, "heartbeat of a Python thread; stops while the GIL is held"),
    ("python_beat_ns", "u8", 1, "CLOCK_MONOTONIC of the last one"),
    ("phase", "u4", 1, "Phase"),
    ("host_wait", "u4", 1, "HostWait"),
    ("phase_entered_ns", "u8", 1, "CLOCK_MONOTONIC"),
    ("host_wait_entered_ns", "u8", 1, "CLOCK_MONOTONIC"),
    ("step", "u8", 1, "optimizer steps seen or declared"),
    ("step_entered_ns", "u8", 1, "CLOCK_MONOTONIC of the last step"),
    ("paced_ns", "u8", 1, "total time this rank was held back by pacing"),
    ("issued", "u8", 1, "process-wide issue counter over all communicators"),
    ("frames_open", "u4", 1, "frames in use"),
    ("host_wait_rank", "i4", 1, "global rank a host wait depends on, -1 unknown"),
    ("communicators_dropped", "u8", 1, "communicators beyond COMMUNICATORS_MAX"),
    ("operations_dropped", "u8", 1, "operations that found no free slot"),
    ("errors", "u8", 1, "internal errors swallowed so that training is not hurt"),
    ("finished", "u4", 1, "1 after an orderly end of training"),
    ("spare0", "u4", 1, ""),
    # the NCCL profiler plugin about itself (docs/adr/0031-nccl-profiler.md)
    ("nccl_tier", "u4", 1, "detail in force: 0 entries, 1 and kernels, 2 and proxy steps"),
    ("nccl_tier_max", "u4", 1, "highest tier that the time budget allows now"),
    ("nccl_events", "u4", 1, "event bits asked of NCCL"),
    ("nccl_version", "u4", 1, "of the library, for example 22809; 0 = unknown"),
    ("nccl_own_ns", "u8", 1, "time spent in callbacks, all threads"),
    ("nccl_lowered", "u8", 1, "times the tier was lowered because of the budget"),
    ("nccl_over_ns", "u8", 1, "CLOCK_MONOTONIC of the last second above the budget"),
    ("nccl_foreign", "u8", 1, "operations of other processes (PXN), never dereferenced"),
    ("nccl_dropped", "u8", 1, "events that found no place"),
    ("nccl_late", "u8", 1, "events of communicators that were closed before"),
    ("nccl_replays", "u8", 1, "operations run by CUDA graphs, which no round counts"),
    ("nccl_marker", "u4", 1, "marks in streams: 0 none yet, 1 on, 2 no driver, 3 it or the GPU refuses"),
    ("nccl_marks_off", "u4", 1, "communicators whose marks were switched off"),
    ("spare", "u8", (4096 - 616) // 8, ""),
)

FRAME = _layout(
    "frame",
    1184,
    "one per (process, communicator); its size does not depend on the cluster",
    ("magic", "u4", 1, "FRAME_MAGIC"),
    ("version", "u2", 1, "LAYOUT_VERSION"),
    ("frame_bytes", "u2", 1, "1184"),
    ("lock", "u4", 1, "sequence lock of this frame and of its detail block; odd while written"),
    ("sources", "u4", 1, "Source flags"),
    ("comm", "u8", 1, "communicator id, the same number on every member"),
    ("instance", "u4", 1, "how many communicators of this name and membership came before"),
    ("comm_rank", "u4", 1, "rank inside the communicator"),
    ("nranks", "u4", 1, "size of the communicator"),
    ("nnodes", "u4", 1, "0 = unknown"),
    ("global_rank", "u4", 1, "rank inside the job"),
    ("tid", "u4", 1, "thread of the newest operation"),
    ("context", "u8", 1, "opaque to readers"),
    ("flags", "u4", 1, "FrameFlag"),
    ("slot", "u4", 1, "index of this frame and of its detail block"),
    # newest entered operation, 64
    ("round", "u8", 1, "rounds entered; point-to-point never advances it; the first round is 1"),
    ("nccl_seq", "u8", 1, "NCCL's own sequence number, 0 = unknown"),
    ("function", "u1", 1, "Function"),
    ("dtype", "u1", 1, "DType"),
    ("reduce_op", "u1", 1, "ReduceOp"),
    ("algorithm", "u1", 1, "Algorithm"),
    ("protocol", "u1", 1, "Protocol"),
    ("channels", "u1", 1, "channels in use, 0 = unknown"),
    ("state", "u1", 1, "OpState"),
    ("kind", "u1", 1, "OpKind"),
    ("peer", "i4", 1, "root or peer as a rank of the communicator, -1 none"),
    ("open_ops", "u4", 1, "operations entered and not completed"),
    ("count", "u8", 1, "elements"),
    ("bytes", "u8", 1, "bytes"),
    ("signature", "u8", 1, "hash over what every member must agree on"),
    ("issue", "u8", 1, "process-wide issue index"),
    # times and head of line, 64, CLOCK_MONOTONIC ns
    ("entered_ns", "u8", 1, "newest operation: API entered"),
    ("returned_ns", "u8", 1, "newest operation: API returned"),
    ("enqueued_ns", "u8", 1, "newest operation: handed to the proxy or the stream"),
    ("first_kernel_ns", "u8", 1, "newest operation: first kernel started"),
    ("last_kernel_ns", "u8", 1, "newest operation: last kernel ended"),
    ("head_round", "u8", 1, "oldest round entered and not completed, 0 = none"),
    ("head_signature", "u8", 1, "its signature"),
    ("head_entered_ns", "u8", 1, "when it was entered"),
    # sixteen cumulative counters, 128
    ("started", "u8", 1, "collectives entered"),
    ("enqueued", "u8", 1, "collectives handed over"),
    ("completed", "u8", 1, "collectives completed"),
    ("p2p_started", "u8", 1, "point-to-point operations entered"),
    ("send_count", "u8", 1, "SendCount, in slices"),
    ("send_bytes", "u8", 1, ""),
    ("recv_count", "u8", 1, "RecvCount, in slices"),
    ("recv_bytes", "u8", 1, ""),
    ("send_posted", "u8", 1, "sends posted: p2p, and slices of collectives"),
    ("recv_posted", "u8", 1, "receives posted: p2p, and slices of collectives"),
    ("kernels_started", "u8", 1, ""),
    ("kernels_done", "u8", 1, ""),
    ("proxies_open", "u8", 1, ""),
    ("dropped", "u8", 1, "operations this frame could not record"),
    ("foreign", "u8", 1, "events of other processes (PXN), never dereferenced"),
    ("progress_ns", "u8", 1, "CLOCK_MONOTONIC of the last completion or count"),
    ("send_wait_ns", "u8", 4, "waited per peer slot after the pipeline has filled"),
    ("recv_wait_ns", "u8", 4, "ring: slot 0; tree: up, down0..2"),
    ("channel", "S12", CHANNELS_MAX, "u32 sends done, u32 receives done, 3 states, spare"),
    ("gpu_arrive", "u8", 1, "written by the GPU: tag and newest round that its stream has come to"),
    ("gpu_leave", "u8", 1, "written by the GPU: tag and newest round that its stream is through with"),
    ("gpu_tag", "u8", 1, "upper 16 bits of the marks of this communicator, the others 0; 0 = no marks"),
    ("gpu_spare", "u8", 1, ""),
)

ROUND = _layout(
    "round_entry",
    64,
    "what one operation is",
    ("round", "u8", 1, "round of a collective; 0 for point-to-point"),
    ("issue", "u8", 1, "process-wide issue index"),
    ("entered_ns", "u8", 1, ""),
    ("completed_ns", "u8", 1, "0 = open"),
    ("signature", "u8", 1, ""),
    ("count", "u8", 1, "elements"),
    ("kind", "u1", 1, "OpKind"),
    ("function", "u1", 1, "Function"),
    ("dtype", "u1", 1, "DType"),
    ("reduce_op", "u1", 1, "ReduceOp"),
    ("algorithm", "u1", 1, "Algorithm"),
    ("protocol", "u1", 1, "Protocol"),
    ("state", "u1", 1, "OpState"),
    ("spare", "u1", 1, ""),
    ("peer", "i4", 1, "root or peer, rank of the communicator, -1 none"),
    ("pair_seq", "u4", 1, "point-to-point: sequence number within (peer, direction), from 1"),
)

ROUND_TIMES = _layout(
    "round_times",
    64,
    "what one operation cost; parallel to round_entry",
    ("started_ns", "u8", 1, "max(entered, previous completion, first kernel)"),
    ("send_count", "u8", 1, "frame counter when started"),
    ("recv_count", "u8", 1, "frame counter when started"),
    ("send_wait_ns", "u8", 1, "waited in this operation"),
    ("recv_wait_ns", "u8", 1, "waited in this operation"),
    ("total_ns", "u8", 1, "sum of T = completed - started of this communicator up to here"),
    ("bytes", "u8", 1, ""),
    ("step", "u4", 1, "low 32 bits of the step"),
    ("flags", "u4", 1, "FrameFlag"),
)

EDGE = _layout(
    "edge",
    32,
    "traffic and waits of one neighbour",
    ("peer", "i4", 1, "rank of the communicator, -1 = row unused"),
    ("group", "u2", 1, "channel group: 0 ring, 1 first tree, 2 second tree"),
    ("direction", "u2", 1, "0 send, 1 receive"),
    ("count", "u8", 1, ""),
    ("bytes", "u8", 1, ""),
    ("wait_ns", "u8", 1, ""),
)

PEER = _layout(
    "peer_row",
    128,
    "point-to-point with one peer; [0] is send, [1] is receive",
    ("peer", "i4", 1, "rank of the communicator; -2 = any source; row unused while posted is 0"),
    ("flags", "u4", 1, "FrameFlag"),
    ("posted", "u8", 2, ""),
    ("completed", "u8", 2, ""),
    ("head_seq", "u8", 2, "pair sequence of the oldest open operation, 0 = none"),
    ("head_entered_ns", "u8", 2, ""),
    ("head_signature", "u8", 2, ""),
    ("total_ns", "u8", 2, "sum of T"),
    ("progress_ns", "u8", 1, "last completion in either direction"),
    ("head_issue", "u8", 2, "process-wide issue index of the oldest open operation"),
)

CONTROL = _layout(
    "control_page",
    4096,
    "written by the agent, read by the probe",
    ("magic", "u4", 1, "CONTROL_MAGIC"),
    ("version", "u2", 1, "LAYOUT_VERSION"),
    ("control_bytes", "u2", 1, "4096"),
    ("lock", "u4", 1, "sequence lock"),
    ("detail", "u4", 1, "DetailLevel"),
    ("generation", "u8", 1, "grows with every change"),
    ("pace_ns", "u8", 1, "delay per step for this rank, 0 = none"),
    ("pace_expires_ns", "u8", 1, "CLOCK_MONOTONIC after which pace_ns is ignored"),
    ("agent_beat_ns", "u8", 1, "CLOCK_MONOTONIC of the agent's last poll"),
    ("spare", "u8", (4096 - 48) // 8, ""),
)

LAYOUTS = (PROCESS, FRAME, ROUND, ROUND_TIMES, EDGE, PEER, CONTROL)

FRAME_STRIDE = 1216
FRAMES_OFFSET = PROCESS.size
DETAIL_OFFSET = FRAMES_OFFSET + FRAME_STRIDE * COMMUNICATORS_MAX
ROUNDS_IN_DETAIL = 0
ROUND_TIMES_IN_DETAIL = ROUNDS_IN_DETAIL + ROUND.size * ROUNDS_MAX
EDGES_IN_DETAIL = ROUND_TIMES_IN_DETAIL + ROUND_TIMES.size * ROUNDS_MAX
PEERS_IN_DETAIL = EDGES_IN_DETAIL + EDGE.size * EDGES_MAX
DETAIL_STRIDE = 45056
PAGE_BYTES = DETAIL_OFFSET + DETAIL_STRIDE * COMMUNICATORS_MAX
CONTROL_BYTES = CONTROL.size
MARK_ROUND_BITS = 48  # of `gpu_arrive` and `gpu_leave`; above them the tag

CONSTANTS = {
    "PAGE_MAGIC": PAGE_MAGIC,
    "FRAME_MAGIC": FRAME_MAGIC,
    "CONTROL_MAGIC": CONTROL_MAGIC,
    "LAYOUT_VERSION": LAYOUT_VERSION,
    "COMMUNICATORS_MAX": COMMUNICATORS_MAX,
    "CHANNELS_MAX": CHANNELS_MAX,
    "EDGES_MAX": EDGES_MAX,
    "PEERS_MAX": PEERS_MAX,
    "ROUNDS_NEWEST_MAX": ROUNDS_NEWEST_MAX,
    "ROUNDS_KEPT_MAX": ROUNDS_KEPT_MAX,
    "ROUNDS_MAX": ROUNDS_MAX,
    "FRAME_STRIDE": FRAME_STRIDE,
    "FRAMES_OFFSET": FRAMES_OFFSET,
    "DETAIL_OFFSET": DETAIL_OFFSET,
    "DETAIL_STRIDE": DETAIL_STRIDE,
    "ROUNDS_IN_DETAIL": ROUNDS_IN_DETAIL,
    "ROUND_TIMES_IN_DETAIL": ROUND_TIMES_IN_DETAIL,
    "EDGES_IN_DETAIL": EDGES_IN_DETAIL,
    "PEERS_IN_DETAIL": PEERS_IN_DETAIL,
    "PAGE_BYTES": PAGE_BYTES,
    "CONTROL_BYTES": CONTROL_BYTES,
    "MARK_ROUND_BITS": MARK_ROUND_BITS,
}
