// What all parts of the plugin share: the page, the detail asked for, and the account of its own time.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi.h"
#include "clock.h"
#include "page.h"

namespace paceline::nccl {

enum class Counter { kForeign, kDropped, kLate, kReplays };

struct Plugin {
  std::atomic<paceline_page_v1*> page{nullptr};
  std::atomic<int*> mask{nullptr};       // NCCL's: one int of the process, read at each group and operation
  std::atomic<uint32_t> events{0};       // what stands there
  std::atomic<uint32_t> seen_detail{0};  // of the control page
  std::atomic<uint32_t> version{0};      // of NCCL, 0 = unknown
  std::atomic<bool> captured{false};     // CUDA graphs are in use
  std::atomic<bool> messages_v4{false};  // sends and receives through version 4
  std::atomic<uint64_t> groups{0};
};

Plugin& plugin();

// The page of this process, nullptr where there is none (yet) or where this is a forked child.
inline paceline_page_v1* live_page() {
  paceline_page_v1* page = plugin().page.load(std::memory_order_acquire);
  return page != nullptr && page->usable() ? page : nullptr;
}

void count(Counter counter);

// Detail (tier.cc). `look_at_detail` costs two loads unless something has changed.
void begin_detail(int* mask, uint32_t version);
void begin_v4();  // this NCCL is from before the events of API calls
void look_at_detail();
void choose_events();
// Of NCCL, for a second profiler as well.
inline uint32_t events_asked() { return plugin().events.load(std::memory_order_relaxed); }

// Time spent in callbacks (budget.cc), checked against the budget about once a second.
void add_own_ticks(uint64_t spent, uint64_t now);
uint32_t tier_allowed();

// One callback: when it began, and the account of its time.
class Call {
 public:
  Call() : began_(ticks()) {}
  ~Call() {
    uint64_t now = ticks();
    add_own_ticks(now - began_, now);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  uint64_t now_ns() const { return to_monotonic_ns(began_); }

 private:
  uint64_t began_;
};

}  // namespace paceline::nccl
