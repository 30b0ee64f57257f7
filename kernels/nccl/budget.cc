// The plugin's account of its own time. Above the budget it asks NCCL for less, and says so in the page.
#include <stdlib.h>

#include <mutex>

#include "plugin.h"

namespace paceline::nccl {
namespace {

constexpr double kBudgetPercent = 0.3;         // of wall time, all threads together
constexpr uint64_t kWindowNs = 1'000'000'000;
constexpr uint64_t kHoldNs = 60'000'000'000;   // a lowered tier stays down, each time twice as long
constexpr uint32_t kHoldDoublingsMax = 6;
constexpr uint32_t kTierMax = 2;
constexpr uint32_t kCells = 16;
constexpr uint64_t kCallTicksMax = 1'000'000;  // longer ones were not computing but preempted

struct alignas(64) Cell {
  std::atomic<uint64_t> spent{0};
};

Cell cells[kCells];  // one line for each few threads, so that they do not take it from one another
std::atomic<uint64_t> window_end{0};  // ticks
std::mutex checking;
uint64_t window_began_ns = 0, window_spent = 0, raise_at_ns = 0;
uint32_t lowered = 0;
std::atomic<uint32_t> allowed{kTierMax};

Cell& my_cell() {
  static std::atomic<uint32_t> next{0};
  static thread_local uint32_t mine = next.fetch_add(1, std::memory_order_relaxed) % kCells;
  return cells[mine];
}

double budget_share() {
  static const double share = [] {
    const char* text = getenv("PACELINE_NCCL_BUDGET_PERCENT");
    double percent = text != nullptr ? atof(text) : kBudgetPercent;
    return (percent > 0 && percent <= 100 ? percent : kBudgetPercent) / 100;
  }();
  return share;
}

uint64_t spent_in_all() {
  uint64_t sum = 0;
  for (const Cell& cell : cells) sum += cell.spent.load(std::memory_order_relaxed);
  return sum;
}

// True where the tier may be another one now.
bool judge_window(uint64_t now_ns, uint64_t spent_ns, paceline_page_v1* page) {
  bool over = static_cast<double>(spent_ns) > budget_share() * static_cast<double>(now_ns - window_began_ns);
  uint32_t tier = allowed.load(std::memory_order_relaxed);
  if (page != nullptr && over) put(page->process().nccl_over_ns, now_ns);
  if (over && tier > 0) {
    uint32_t in_force = page != nullptr ? get(page->process().nccl_tier) : tier;
    if (in_force == 0) return false;  // there is nothing left to give up
    allowed.store((in_force < tier ? in_force : tier) - 1);
    lowered++;
    raise_at_ns = now_ns + (kHoldNs << (lowered - 1 < kHoldDoublingsMax ? lowered - 1 : kHoldDoublingsMax));
    if (page != nullptr) put(page->process().nccl_lowered, lowered);
    return true;
  }
  if (!over && tier < kTierMax && now_ns >= raise_at_ns) {
    allowed.store(kTierMax);
    return true;
  }
  return false;
}

void check(uint64_t now) {
  std::unique_lock<std::mutex> guard(checking, std::try_to_lock);
  if (!guard.owns_lock()) return;
  tune_clock();
  uint64_t now_ns = to_monotonic_ns(now);
  uint64_t per_ns = ticks_to_ns(1'000'000);  // ns per million ticks
  uint64_t step = per_ns > 0 ? kWindowNs / 10 * 1'000'000 / per_ns : kWindowNs / 10;
  window_end.store(now + step, std::memory_order_relaxed);  // ten looks at the clock for one at the budget
  uint64_t spent = ticks_to_ns(spent_in_all());
  paceline_page_v1* page = live_page();
  if (page != nullptr) put(page->process().nccl_own_ns, spent);
  if (window_began_ns == 0 || now_ns < window_began_ns + kWindowNs) {
    if (window_began_ns == 0) window_began_ns = now_ns, window_spent = spent;
    return;
  }
  bool changed = judge_window(now_ns, spent - window_spent, page);
  window_began_ns = now_ns;
  window_spent = spent;
  guard.unlock();
  if (changed) choose_events();
}

}  // namespace

uint32_t tier_allowed() { return allowed.load(std::memory_order_relaxed); }

void add_own_ticks(uint64_t spent, uint64_t now) {
  my_cell().spent.fetch_add(spent < kCallTicksMax ? spent : kCallTicksMax, std::memory_order_relaxed);
  if (now >= window_end.load(std::memory_order_relaxed)) check(now);
}

}  // namespace paceline::nccl
