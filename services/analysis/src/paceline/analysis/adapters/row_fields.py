"""Names under which tools write measured values, and the one name each has here.

A name is brought to lower case with underscores (`recvCount`, `recv-count` and `recv.count` are
`recv_count`), its unit is taken from its end, and what is left is looked up. Times become seconds:

| ends with | means |
|---|---|
| `_ns`, `_us`, `_ms`, `_s` (also nsec, usec, msec, sec, seconds, ...) | a time in that unit |
| `_min`, `_minutes`, `_h`, `_hours` | minutes, hours |
| nothing | seconds, where the name can only be a time; `step` and the like are numbers then |
| `_kbps`, `_mbps`, `_gbps`, `_mb_s`, `_gb_s`, ... | a rate; bits and bytes are not told apart |

Words such as `perf/`, `timing.`, `train_`, `avg_` in front of a name are dropped. The tables below are the
documentation of what is accepted; a name that stands in none of them is kept as it is found.
"""

import re
from functools import lru_cache

_NAMES_KEPT = 4096  # of fields, with what they mean
TIMES = {
    # own work of a rank before it enters the collective of the step
    "own_s": "own own_time pre pre_time pre_collective pre_coll before_collective before_sync "
    "before_comm compute "
    "compute_time comp comp_time computation gpu_compute work work_time busy busy_time local local_time "
    "forward_backward fwd_bwd forward_backward_compute time_to_collective arrival arrive arrival_time",
    "forward_s": "forward fwd forward_time fwd_time",
    "backward_s": "backward bwd backward_time bwd_time",
    "optimizer_s": "optimizer opt optimizer_step optimizer_time optim",
    # inside collectives: transfer and waiting for others
    "collective_s": "coll coll_time collective collective_time comm comm_time communication "
    "communication_time "
    "exposed_comm allreduce all_reduce reduce_scatter all_gather allgather alltoall all_to_all grad_sync "
    "grad_reduce gradient_reduction gradient_sync allreduce_time all_reduce_time nccl nccl_time "
    "in_collective",
    # only waiting for others
    "wait_s": "wait wait_time waiting sync_wait barrier barrier_wait barrier_time blocked blocked_time idle "
    "idle_time stall stall_time sync sync_time host_wait",
    # own work queued behind the collective
    "tail_s": "tail tail_time post post_time post_collective after_collective after_coll after after_comm "
    "compute_tail queued",
    "data_s": "data load_data data_time data_load data_loading dataloader dataloader_time data_wait "
    "data_loader input "
    "input_time input_wait batch_generator batch_load load_batch next_batch fetch data_fetch fetch_time",
    "step_s": "step iter iteration step_time iter_time iteration_time step_duration time_per_step batch_time "
    "time_per_iteration elapsed_time_per_iteration train_step_time total total_time wall wall_time interval "
    "step_interval time_per_iter step_total",
    "gc_s": "gc gc_pause gc_collect garbage_collection",
    "duration_s": "duration dur elapsed elapsed_time latency exec exec_time pause pause_time runtime took "
    "op_time kernel_time coll_exec_time",
}
COUNTS = {
    "rank": "rank global_rank rank_id world_rank process_index worker_rank trainer_rank dist_rank",
    "local_rank": "local_rank",
    "pid": "pid process_id",
    "step": "step iteration iter global_step it step_id iteration_id batch batch_idx batch_id update "
    "train_step "
    "step_num step_number iter_num iteration_number step_idx",
    "capture": "capture capture_id snapshot dump dump_id poll sample",
    "launched": "launched launches launch_count n_launched enqueued issued started entered "
    "num_launched calls "
    "ops_launched ops_started host_count",
    "completed": "completed complete done finished complete_count completion_count n_completed num_completed "
    "ops_completed ops_done device_count exited",
    "sends": "send_count sends sent send n_send sendcount num_sends slices_sent posted transmitted",
    "receives": "recv_count receives received recv recvd n_recv recvcount num_recvs slices_received "
    "recv_done",
    "sequence": "sequence seq seq_num seq_id seqnum trace trace_id round round_id op_count opcount coll_seq "
    "collective_seq collective_seq_id coll_id op_id",
    "index": "k index idx order pos position_in_order slot nth i n issue_order issue_index call call_index",
    "peer": "peer peer_rank remote_rank remote target_rank",
    "src_rank": "src src_rank from source source_rank sender sender_rank from_rank",
    "dst_rank": "dst dst_rank to dest dest_rank destination receiver receiver_rank to_rank",
    "count": "count numel elements n_elements num_elements",
    "size": "size bytes size_bytes msg_size message_size msg_bytes n_bytes nbytes size_b msg_size_bytes",
    "root": "root root_rank",
    "generation": "generation gen gc_generation gc_gen",
    "objects": "objects collected n_objects",
    "link": "link link_id nvlink link_index",
    "recovery_events": "recovery_events recoveries recovery_count nvlink_recovery nvlink_recovery_events "
    "nvlink_recovery_count link_recovery link_recovery_events recovery link_recoveries recovery_error_count "
    "nvlink_recovery_error_count",
}
GAUGES = {
    "sm_util": "sm_util sm sm_active gpu_util utilization_gpu gpu_utilization util_gpu utilization "
    "gpu_busy sm_activity util "
    "dcgm_fi_dev_gpu_util sm_utilization gpu_use",
    "mem_util": "mem_util memory_util mem_copy_util utilization_memory mem_utilization dram_active "
    "mem_bw_util "
    "dcgm_fi_dev_mem_copy_util memory_utilization mem_throughput memory_throughput mem_busy",
    "power_w": "power power_draw power_usage board_power dcgm_fi_dev_power_usage gpu_power power_w pwr "
    "power_draw_average power_draw_instant",
    "power_cap_w": "power_cap power_limit power_limit_enforced tdp power_max",
    "temp_c": "temp temperature temperature_gpu gpu_temp temp_gpu dcgm_fi_dev_gpu_temp gtemp gpu_temperature",
    "sm_clock_mhz": "sm_clock clock_sm clocks_sm sm_clk gr_clock clocks_gr graphics_clock "
    "dcgm_fi_dev_sm_clock gpu_clock clock clocks_current_sm clocks_current_graphics pclk",
    "mem_clock_mhz": "mem_clock clock_mem clocks_mem mem_clk memory_clock dcgm_fi_dev_mem_clock "
    "clocks_current_memory mclk",
    "memory_used": "memory_used mem_used fb_used used_memory memory_usage",
    "pcie_rx": "pcie_rx pcie_rx_throughput rx_pci rxpci",
    "pcie_tx": "pcie_tx pcie_tx_throughput tx_pci txpci",
}
RATES = {
    "send_rate": "send_rate tx_rate send_bw send_bandwidth tx_bw out_rate egress tx_throughput "
    "send_throughput",
    "receive_rate": "recv_rate rx_rate receive_rate recv_bw recv_bandwidth rx_bw in_rate ingress "
    "rx_throughput",
    "busbw": "busbw bus_bw bus_bandwidth coll_busbw",
    "algbw": "algbw alg_bw alg_bandwidth coll_algobw",
    "bandwidth": "bandwidth bw throughput rate link_bw p2p_bw",
    "expected_rate": "expected expected_bw expected_busbw nominal nominal_bw line_rate link_speed peak_bw",
}
WORDS = {
    "node": "node host hostname node_id node_name nodename machine instance pod server node_rank",
    "gpu": "gpu device gpu_index gpu_id cuda_dev cuda_device pci pci_bus_id bus_id pci_bus gpu_uuid "
    "device_id",
    "op": "op operation coll collective func function op_name opname op_type optype coll_func "
    "coll_name name primitive",
    "comm": "comm communicator group pg process_group pg_name comm_hash comm_id comm_name group_name pg_id "
    "communicator_name commid",
    "at": "host_at at where location frame top_frame stack_top python_frame host_frame position "
    "host_position "
    "call_site callsite stack py_frame innermost_frame host_stack code",
    "head": "stream_head running_kernel current_kernel head_kernel gpu_kernel active_kernel kernel "
    "kernel_name "
    "stream_top last_kernel in_flight",
    "action": "action api call nvml_call command syscall verb request",
    "phase": "phase event type kind stage category span activity",
    "role": "role tag purpose label direction",
    "shape": "shape shapes sizes tensor_shape input_shape tensor_size",
    "dtype": "dtype datatype data_type dtype_name",
    "src": "src source from sender node_a host_a node1 host1 server_a src_node src_host node_src client",
    "dst": "dst dest destination to receiver node_b host_b node2 host2 server_b dst_node dst_host node_dst "
    "peer_node peer_host remote_host",
}
STAMPS = {
    "t": "t ts timestamp time time_stamp wall_clock when at_time start start_time t_start date "
    "datetime epoch_time clock_time",
    "end": "end end_time t_end stop stop_time finish finish_time",
    "minute": "minute minutes",
    "second": "second seconds",
}  # fmt: skip
_SECONDS = {
    1e-9: "ns nsec nsecs nanos nanoseconds",
    1e-6: "us usec usecs micros microseconds",
    1e-3: "ms msec msecs millis milliseconds",
    1.0: "s sec secs second seconds",
    60.0: "min mins minute minutes",
    3600.0: "h hour hours",
}
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(
    r"_([kmgt]?)i?(?:bps|bs|b_s|bytes_s|bytes_per_s|bytes_per_sec|b_sec|b_per_s|b_per_sec|bit_s|bits_s)$"
)
_GAUGE_UNIT = re.compile(r"_(?:w|watts?|c|celsius|pct|percent|perc|mhz|mb|mib|gb|gib|mb_s|mbps|mw)$")
_LEADING = (
    "t time times timing timings timer perf performance train training trainer profile metrics metric "
    "avg mean median "
    "p50 max host device nvml dcgm cuda measured elapsed my local gpu step iter iteration"
)
_STATISTIC = re.compile(
    r"(?<=_(?:ns|us|ms))_(?:avg|mean|median|p50)$|(?<=_s)_(?:avg|mean|median|p50)$"
    r"|_(?:avg|mean|median|p50)(?=_(?:ns|us|ms|s)$)"
)
_TIME_WORD = re.compile(r"_(?:time|duration|dur|latency|elapsed|span)$")  # behind any name of a time
_IN_FRONT = frozenset(_LEADING.split())
_BENCH = re.compile(
    r"flops|gemm|matmul|bench|(?:^|_)bw(?:_|$)|bandwidth|busbw|per_s(?:ec)?(?:_|$)|throughput"
)
_PLACES = frozenset(
    ("rank", "local_rank", "step", "index", "src_rank", "dst_rank", "node", "gpu", "src", "dst")
)
# Names that count, name or flag something where they have no unit.
_AMBIGUOUS = (
    "step iter iteration allreduce all_reduce reduce_scatter all_gather allgather alltoall all_to_all "
    "nccl after "
    "post total data input local work interval own coll collective comm arrive queued fetch sync"
)
_NUMBERS_WITHOUT_UNIT = frozenset(_AMBIGUOUS.split())
NETWORK_COUNTER = re.compile(
    r"discard|drop|pause|cnp|ecn|retrans|retry|rnr|out_of_seq|packet_seq|out_of_buffer|symbol_err|link_down"
    r"|rcv_err|receive_err|xmit_wait|crc|fec|local_ack_timeout|nak|congest|port_err|rx_err|tx_err"
    r"|req_.*_err|resp_.*_err"
)  # of a NIC or switch port: ethtool, mlx5 hw_counters, port counters


def _turned(table: dict[str, str]) -> dict[str, str]:
    return {alias: name for name, aliases in table.items() for alias in aliases.split()}


_TIMES, _COUNTS, _GAUGES = _turned(TIMES), _turned(COUNTS), _turned(GAUGES)
_RATES, WORD_OF, _STAMPS = _turned(RATES), _turned(WORDS), _turned(STAMPS)
_UNIT = {alias: scale for scale, aliases in _SECONDS.items() for alias in aliases.split()}


@lru_cache(maxsize=_NAMES_KEPT)
def bare_name(name: str) -> str:
    """`coll(ms)`, `recvCount`, `perf/step-time` as `coll_ms`, `recv_count`, `perf_step_time`."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name[:80])
    return _STATISTIC.sub("", re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")).replace("_cnt", "_count")


def number_of(name: str, value: float) -> tuple[str, float]:
    """The name used here and the value in its unit, of one field whose name is bare."""
    known, scale = _known(name)
    return known, value * scale


@lru_cache(maxsize=_NAMES_KEPT)
def _known(name: str) -> tuple[str, float]:
    shortened = name
    for _ in range(3):
        found = _number(shortened, 1.0)
        if found is not None:
            return found
        front, _, rest = shortened.partition("_")
        if not rest or front not in _IN_FRONT:
            break
        shortened = rest
    return name, 1.0


def is_measure(name: str) -> bool:
    """Whether a bare name is that of a time, rate or gauge, or can be one in a row of times."""
    known, _ = _known(name)
    if known in TIMES or known in GAUGES or known in RATES or bare_time(name) is not None:
        return True
    return _BENCH.search(name) is not None


def is_place(name: str) -> bool:
    """Whether a bare name says which rank, step, node, device or moment a row belongs to."""
    return _known(name)[0] in _PLACES or WORD_OF.get(name) in _PLACES or stamp_of(name) is not None


def bare_time(name: str) -> str | None:
    """The time that a name without a unit may mean, besides a count or a word."""
    return _TIMES.get(name) if name in _NUMBERS_WITHOUT_UNIT and name not in _COUNTS else None


@lru_cache(maxsize=_NAMES_KEPT)
def stamp_of(name: str) -> tuple[str, float] | None:
    """For names of points in time: which, and the seconds of one unit (0 where the name has none)."""
    if name in _STAMPS:
        return _STAMPS[name], {"minute": 60.0, "second": 1.0}.get(_STAMPS[name], 0.0)
    base, _, unit = name.rpartition("_")
    if unit in _UNIT and _STAMPS.get(base) in ("t", "end"):
        return _STAMPS[base], _UNIT[unit]
    return None


def _number(name: str, value: float) -> tuple[str, float] | None:
    if name in _COUNTS:
        return _COUNTS[name], value
    if rate := _RATE.search(name):
        base = name[: rate.start()]
        return (_RATES[base], value * _SCALES[rate[1]]) if base in _RATES else None
    base, _, unit = name.rpartition("_")
    if unit in _UNIT and (base in _TIMES or _TIME_WORD.sub("", base) in _TIMES):
        return _TIMES.get(base) or _TIMES[_TIME_WORD.sub("", base)], value * _UNIT[unit]
    if name in _TIMES and name not in _NUMBERS_WITHOUT_UNIT:
        return _TIMES[name], value
    if _TIME_WORD.search(name) and _TIME_WORD.sub("", name) in _TIMES:
        return _TIMES[_TIME_WORD.sub("", name)], value
    if name in _GAUGES:
        return _GAUGES[name], value
    if name in _RATES:
        return _RATES[name], value
    plain = _GAUGE_UNIT.sub("", name)
    if plain in _GAUGES:
        return _GAUGES[plain], value / 1e3 if name.endswith("_mw") else value
    return None
