#include "clock.h"

#include <stdio.h>
#include <string.h>

#include <atomic>
#include <mutex>

#include "atomics.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace paceline::nccl {
namespace {

constexpr uint64_t kFirstSpanNs = 20'000'000;   // a rate from less would be off by more than a microsecond
constexpr uint64_t kTuneSpanNs = 100'000'000;  // NTP bends CLOCK_MONOTONIC by at most 0.05 %: 50 us until then
constexpr uint64_t kTornTicks = 5'000;
constexpr uint32_t kFraction = 32;             // bits of the rate behind the point

// One measured pair and the rate, read without a lock.
struct Anchor {
  uint32_t lock;
  uint64_t at_ticks, at_ns, rate;  // rate: ns per tick, 32 bits of fraction; 0 = not known yet
};

Anchor anchor{};
std::mutex tuning;
std::atomic<int> source{0};  // 0 not chosen, 1 system clock, 2 time stamp counter

#if defined(__x86_64__)
uint64_t counter() { return __rdtsc(); }

bool kernel_trusts_it() {
  FILE* file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
  if (file == nullptr) return false;
  char name[32] = {};
  bool trusted = fgets(name, sizeof name, file) != nullptr &&
                 (strncmp(name, "tsc", 3) == 0 || strncmp(name, "kvm-clock", 9) == 0 ||
                  strncmp(name, "hyperv_clocksource", 18) == 0);
  fclose(file);
  return trusted;
}

bool has_invariant_counter() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0 && kernel_trusts_it();
}
#else
uint64_t counter() { return 0; }
bool has_invariant_counter() { return false; }
#endif

bool counts() { return source.load(std::memory_order_relaxed) == 2; }

bool read_anchor(Anchor* copy) {
  for (int i = 0; i < 4; i++) {
    uint32_t before = __atomic_load_n(&anchor.lock, __ATOMIC_ACQUIRE);
    copy->at_ticks = get(anchor.at_ticks);
    copy->at_ns = get(anchor.at_ns);
    copy->rate = get(anchor.rate);
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((before & 1u) == 0 && get(anchor.lock) == before) return copy->rate != 0;
  }
  return false;
}

uint64_t scale(uint64_t count, uint64_t rate) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(count) * rate) >> kFraction);
}

}  // namespace

uint64_t ticks() { return counts() ? counter() : monotonic_ns(); }

uint64_t to_monotonic_ns(uint64_t at) {
  if (!counts()) return at;
  Anchor copy;
  if (!read_anchor(&copy)) return monotonic_ns();
  if (at >= copy.at_ticks) return copy.at_ns + scale(at - copy.at_ticks, copy.rate);
  uint64_t back = scale(copy.at_ticks - at, copy.rate);
  return back < copy.at_ns ? copy.at_ns - back : 0;
}

uint64_t ticks_to_ns(uint64_t count) {
  if (!counts()) return count;
  Anchor copy;
  return read_anchor(&copy) ? scale(count, copy.rate) : count / 2;  // 2 GHz until it is known
}

void tune_clock() {
  std::unique_lock<std::mutex> guard(tuning, std::try_to_lock);
  if (!guard.owns_lock()) return;
  if (source.load() == 0) source.store(has_invariant_counter() ? 2 : 1);
  if (!counts()) return;
  uint64_t before = counter(), ns = monotonic_ns(), after = counter();
  if (after - before > kTornTicks) return;  // preempted in between: another time
  uint64_t now = before + (after - before) / 2;
  bool first = get(anchor.at_ns) == 0;
  uint64_t span_ns = ns - get(anchor.at_ns), span = now - get(anchor.at_ticks);
  if (!first && span_ns < (get(anchor.rate) == 0 ? kFirstSpanNs : kTuneSpanNs)) return;
  bool known = !first && span != 0;
  uint64_t rate = known ? static_cast<uint64_t>((static_cast<unsigned __int128>(span_ns) << kFraction) / span) : 0;
  SequenceWrite write(anchor.lock);
  put(anchor.at_ticks, now);
  put(anchor.at_ns, ns);
  put(anchor.rate, rate);
}

}  // namespace paceline::nccl
