// Rows of a record of frames, as contracts/batch.py lays them out.
#pragma once

#include "module.h"

namespace paceline {

struct StateRow {
  uint64_t comm;
  uint32_t rank, comm_rank;
  uint64_t entered, completed, head_round, head_signature, head_issue;
  uint32_t head_age_ms, idle_ms;
  uint64_t send_count, recv_count;
  uint16_t open_ops, flags;
  uint8_t function, dtype, reduce_op, state;
  int32_t peer;
  uint32_t sources;
};
static_assert(sizeof(StateRow) == 96 && offsetof(StateRow, sources) == 92, "STATE_ROW");

struct RoundRow {
  uint64_t comm;
  uint32_t rank, comm_rank;
  uint64_t round, issue, signature, count, duration_ns, gap_ns;
  uint8_t kind, function, dtype, reduce_op, state, level, flags, path;
  int32_t peer;
  uint32_t pair_seq, step, age_ms, send_wait_us, recv_wait_us;
};
static_assert(sizeof(RoundRow) == 96 && offsetof(RoundRow, recv_wait_us) == 92, "ROUND_ROW");

struct ProcessRow {
  uint32_t rank, pid;
  uint64_t pid_start, step, issued, cpu_ms, paced_ms;
  uint32_t native_age_ms, python_age_ms, phase_age_ms, step_age_ms, host_wait_age_ms;
  int32_t host_wait_rank, exit_code;
  uint16_t communicators;
  uint8_t phase, process_state, host_wait, exit_kind, finished, flags;
  uint32_t dropped, context_switches, waited_ms;
};
static_assert(sizeof(ProcessRow) == 96 && offsetof(ProcessRow, waited_ms) == 92, "PROCESS_ROW");

struct EdgeRow {
  uint64_t comm;
  uint32_t rank, comm_rank;
  int32_t peer;
  uint16_t group, direction;
  uint64_t count, bytes, wait_ns;
  uint32_t recent_wait_us, recent_us;
  uint8_t state, spare[7];
};
static_assert(sizeof(EdgeRow) == 64 && offsetof(EdgeRow, state) == 56, "EDGE_ROW");

struct PeerRow {
  uint64_t comm;
  uint32_t rank, comm_rank;
  int32_t peer;
  uint32_t flags;
  uint64_t posted[2], completed[2], head_signature[2], head_issue[2];
  uint32_t head_age_ms[2];
};
static_assert(sizeof(PeerRow) == 96 && offsetof(PeerRow, head_age_ms) == 88, "PEER_ROW");

}  // namespace paceline
