// Which events NCCL is asked for: the agent's wish, what is safe with this NCCL, and the time budget.
#include <stdlib.h>

#include <mutex>

#include "chain.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

constexpr uint32_t kTierMax = 2;
constexpr uint64_t kAgentSilentNs = 30'000'000'000;  // three samples of the slowest agent
constexpr uint32_t kEntries = event::kGroupApi | event::kCollApi | event::kP2pApi | event::kKernelLaunch |
                              event::kColl | event::kP2p;
constexpr uint32_t kEntriesV4 = event::kGroup | event::kColl | event::kP2p;

std::mutex choosing;
std::atomic<bool> speaks_v4{false};

uint32_t base_tier() {
  static const uint32_t tier = [] {
    const char* text = getenv("PACELINE_NCCL_TIER");
    bool known = text != nullptr && text[0] >= '0' && text[0] <= '2' && text[1] == '\0';
    return known ? static_cast<uint32_t>(text[0] - '0') : 0u;
  }();
  return tier;
}

// What the agent asks for. More than the default is taken back when the agent has died: nobody else would.
uint32_t requested_detail(paceline_page_v1* page) {
  constexpr uint32_t kDefault = PACELINE_DETAIL_LEVEL_ROUNDS;
  if (page == nullptr) return kDefault;
  uint32_t detail = get(page->requested().detail);
  if (detail <= kDefault) return detail;
  uint64_t beat_ns = get(page->requested().agent_beat_ns), now_ns = monotonic_ns();
  return now_ns > beat_ns && now_ns - beat_ns > kAgentSilentNs ? kDefault : detail;
}

// Kernel events cost too much, or hurt, in these cases (docs/nccl.md); what is not known is allowed.
bool kernels_are_safe(const Plugin& state) {
  uint32_t version = state.version.load(std::memory_order_relaxed);
  if (version >= 23100 && version < 23200) return false;  // 4 to 13 % slower between 128 kB and 4 MB
  if (state.captured.load(std::memory_order_relaxed)) return false;  // they add host nodes to graphs
  bool fragile = version == 0 ? speaks_v4.load(std::memory_order_relaxed) : version < 22800;
  return !(fragile && state.messages_v4.load(std::memory_order_relaxed));  // crash of all-to-all in 2.27
}

uint32_t events_for(uint32_t tier, bool kernels) {
  uint32_t events = speaks_v4.load(std::memory_order_relaxed) ? kEntriesV4 : kEntries;
  if (kernels) events |= event::kKernelCh;
  if (tier >= 2) events |= event::kProxyOp | event::kProxyStep;
  return events;
}

void show(uint32_t tier, uint32_t events) {
  paceline_page_v1* page = live_page();
  if (page == nullptr) return;
  put(page->process().nccl_tier, tier);
  put(page->process().nccl_tier_max, tier_allowed());
  put(page->process().nccl_events, events);
  put(page->process().nccl_version, plugin().version.load());
}

}  // namespace

void begin_detail(int* mask, uint32_t version) {
  Plugin& state = plugin();
  if (version != 0) state.version.store(version);
  if (mask != nullptr) state.mask.store(mask);
  choose_events();
}

void begin_v4() { speaks_v4.store(true); }

void choose_events() {
  std::lock_guard<std::mutex> guard(choosing);
  Plugin& state = plugin();
  paceline_page_v1* page = live_page();
  uint32_t detail = requested_detail(page);
  state.seen_detail.store(detail, std::memory_order_relaxed);
  uint32_t tier = base_tier();
  if (detail >= PACELINE_DETAIL_LEVEL_EDGES) tier = kTierMax;
  if (tier > tier_allowed()) tier = tier_allowed();
  bool kernels = tier >= 1 && (base_tier() >= 1 || detail >= PACELINE_DETAIL_LEVEL_FULL) && kernels_are_safe(state);
  uint32_t events = page != nullptr ? events_for(tier, kernels) : 0;  // nothing to write them to
  show(tier, events);
  events |= chained_events();  // what comes for either of us is tracked alike
  if ((events & event::kKernelCh) != 0) events |= events_for(0, false);  // whose kernels they are
  state.events.store(events, std::memory_order_relaxed);
  int* mask = state.mask.load(std::memory_order_acquire);
  if (mask != nullptr) __atomic_store_n(mask, static_cast<int>(events), __ATOMIC_RELAXED);
}

void look_at_detail() {
  Plugin& state = plugin();
  // Without a mask nobody can be asked: the shim alone is here.
  if (state.mask.load(std::memory_order_relaxed) == nullptr) return;
  bool same = requested_detail(live_page()) == state.seen_detail.load(std::memory_order_relaxed);
  if (!same || chain_wants_more()) choose_events();
}

}  // namespace paceline::nccl
