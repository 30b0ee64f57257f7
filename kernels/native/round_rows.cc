// Which rounds of a ring become rows, and what is said of each.
#include "reduction.h"

namespace paceline {
namespace {

constexpr uint8_t kNewestOnly = 255;

uint8_t level_of(uint32_t place) {
  return place < PACELINE_ROUNDS_NEWEST_MAX
             ? kNewestOnly
             : static_cast<uint8_t>(kKeptLevels[(place - PACELINE_ROUNDS_NEWEST_MAX) / PACELINE_ROUNDS_KEPT_MAX]);
}

bool is_live(const Round& entry) { return entry.state != PACELINE_OP_STATE_EMPTY && entry.issue > 0; }

// Marks rounds completed since the last sample, at the finest level that stays within the bound. All members
// choose by the number of rounds per sample, so they mostly choose the same level; where they do not, the
// rounds of the coarser one are on both sides.
void choose_kept(const Block& block, const Sample& sample, bool (&chosen)[kRing]) {
  bool done[kRing] = {};
  uint32_t counts[kKeptLevelCount] = {};
  for (uint32_t place = PACELINE_ROUNDS_NEWEST_MAX; place < kRing; place++) {
    const Round& entry = block.rounds[place];
    done[place] = entry.completed_ns > sample.since_ns && entry.completed_ns <= sample.now_ns && is_live(entry);
    counts[(place - PACELINE_ROUNDS_NEWEST_MAX) / PACELINE_ROUNDS_KEPT_MAX] += done[place];
  }
  uint32_t finest = 0;  // a full level may have lost rounds that others kept
  const uint32_t bound = std::min<uint32_t>(PACELINE_ROUNDS_KEPT_MAX, sample.kept_max);
  while (finest + 1 < kKeptLevelCount && counts[finest] >= bound) finest++;
  for (uint32_t place = PACELINE_ROUNDS_NEWEST_MAX + finest * PACELINE_ROUNDS_KEPT_MAX; place < kRing; place++) {
    chosen[place] |= done[place];
  }
}

struct Ordered {
  uint64_t order;
  uint32_t place;
  bool operator<(const Ordered& other) const {
    return order != other.order ? order < other.order : place < other.place;
  }
};

// Marks the `count_max` entries with the smallest order.
void choose_first(Ordered* entries, uint32_t count, uint32_t count_max, bool (&chosen)[kRing]) {
  if (count > count_max) std::nth_element(entries, entries + count_max, entries + count);
  for (uint32_t at = 0; at < std::min(count, count_max); at++) chosen[entries[at].place] = true;
}

// Marks the oldest open operations and, of a communicator that stands still, the newest that were completed.
void choose_detail(const Block& block, const Sample& sample, bool still, bool (&chosen)[kRing]) {
  Ordered open[kRing], recent[kRing];
  uint32_t open_count = 0, recent_count = 0;
  for (uint32_t place = 0; place < kRing; place++) {
    const Round& entry = block.rounds[place];
    if (!is_live(entry)) continue;
    if (entry.completed_ns > 0) {
      recent[recent_count++] = {~entry.issue, place};
    } else if (entry.state < PACELINE_OP_STATE_COMPLETED) {
      open[open_count++] = {entry.issue, place};
    }
  }
  choose_first(open, open_count, sample.open_max, chosen);
  if (still) choose_first(recent, recent_count, sample.recent_max, chosen);
}

// Started - completion of the round before; 0 where that one is no longer in the ring.
uint64_t gap_ns(const Block& block, uint64_t number, uint64_t started_ns) {
  uint64_t previous_ns = 0;
  if (number > 1) {
    for (const Round& entry : block.rounds) {
      if (entry.round == number - 1) previous_ns = std::max(previous_ns, entry.completed_ns);
    }
  }
  return previous_ns > 0 && previous_ns <= started_ns ? started_ns - previous_ns : 0;
}

RoundRow round_of(const Block& block, uint32_t place, uint32_t rank, const Sample& sample) {
  const Round& entry = block.rounds[place];
  const RoundTimes& times = block.times[place];
  RoundRow row{};
  put_identity(&row, block.frame, rank);
  put_operation(&row, entry);
  row.round = entry.round;
  row.issue = entry.issue;
  row.signature = entry.signature;
  row.count = entry.count;
  row.kind = entry.kind;
  row.level = level_of(place);
  row.flags = static_cast<uint8_t>(times.flags);
  row.path = static_cast<uint8_t>(entry.algorithm << 4 | entry.protocol);
  row.pair_seq = entry.pair_seq;
  row.step = times.step;
  if (entry.completed_ns >= times.started_ns && times.started_ns > 0) {
    row.duration_ns = entry.completed_ns - times.started_ns;
  }
  row.gap_ns = gap_ns(block, entry.round, times.started_ns);
  row.age_ms = age_ms(sample, entry.entered_ns);
  row.send_wait_us = clip_u32(times.send_wait_ns / kNsPerUs);
  row.recv_wait_us = clip_u32(times.recv_wait_ns / kNsPerUs);
  return row;
}

}  // namespace

void add_rounds(const Block& block, uint32_t rank, const Sample& sample, bool still, std::vector<RoundRow>* rows) {
  bool chosen[kRing] = {};
  choose_kept(block, sample, chosen);
  if (sample.detail) choose_detail(block, sample, still, chosen);
  for (uint32_t place = 0; place < kRing; place++) {
    if (chosen[place]) rows->push_back(round_of(block, place, rank, sample));
  }
}

// 'Newest only' loses to every level.
void keep_once(std::vector<RoundRow>* rows) {
  auto coarse = [](const RoundRow& row) { return row.level == kNewestOnly ? -1 : int{row.level}; };
  std::stable_sort(rows->begin(), rows->end(), [&](const RoundRow& a, const RoundRow& b) {
    if (a.comm != b.comm) return a.comm < b.comm;
    return a.issue != b.issue ? a.issue < b.issue : coarse(a) > coarse(b);
  });
  auto same = [](const RoundRow& a, const RoundRow& b) { return a.comm == b.comm && a.issue == b.issue; };
  rows->erase(std::unique(rows->begin(), rows->end(), same), rows->end());
}

}  // namespace paceline
