// What the parts of the reduction share (reduction.cc, round_rows.cc).
#pragma once

#include <algorithm>
#include <vector>

#include "block.h"
#include "rows.h"

namespace paceline {

constexpr uint64_t kNsPerMs = 1000000, kNsPerUs = 1000;
constexpr uint32_t kRing = PACELINE_ROUNDS_MAX;

// What holds for all rows of one sample of one process.
struct Sample {
  uint64_t now_ns, since_ns;
  uint32_t suspect_ms, kept_max, open_max, recent_max;
  bool detail, gone;
  uint64_t edges;
};

inline uint32_t clip_u32(uint64_t value) { return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX)); }

// 0 where there is no stamp or where it lies in the future.
inline uint32_t age_ms(const Sample& sample, uint64_t stamp_ns) {
  return stamp_ns == 0 || stamp_ns > sample.now_ns ? 0 : clip_u32((sample.now_ns - stamp_ns) / kNsPerMs);
}

inline bool is_collective(const Round& entry) { return entry.kind == PACELINE_OP_KIND_COLLECTIVE; }

template <class Row>  // each begins with the communicator and the ranks
void put_identity(Row* row, const Frame& frame, uint32_t rank) {
  row->comm = frame.comm;
  row->rank = rank;
  row->comm_rank = frame.comm_rank;
}

template <class Row, class Known>  // from a frame, or from an entry of its ring
void put_operation(Row* row, const Known& known) {
  row->function = known.function;
  row->dtype = known.dtype;
  row->reduce_op = known.reduce_op;
  row->state = known.state;
  row->peer = known.peer;
}

// Rows of what happened in one communicator since the last sample and, while its job is looked at closely, of
// what is open; `still`: nothing has happened in it for too long. Not sorted, an operation may come twice.
void add_rounds(const Block& block, uint32_t rank, const Sample& sample, bool still, std::vector<RoundRow>* rows);

// One row per operation, at its coarsest kept level, in order of communicator and issue.
void keep_once(std::vector<RoundRow>* rows);

}  // namespace paceline
