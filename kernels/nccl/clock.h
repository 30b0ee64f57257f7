// CLOCK_MONOTONIC at the price of the time stamp counter, where the processor's is invariant.
#pragma once

#include <cstdint>

namespace paceline::nccl {

// Raw ticks: of the time stamp counter, or nanoseconds where that cannot be trusted.
uint64_t ticks();
// CLOCK_MONOTONIC, ns, at `at` (a recent value of `ticks`).
uint64_t to_monotonic_ns(uint64_t at);
uint64_t ticks_to_ns(uint64_t count);
// Chooses the source once and compares the two clocks again; called now and then, from any thread.
void tune_clock();

}  // namespace paceline::nccl
