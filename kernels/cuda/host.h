// Stands in for CUDA where there is none: a block is a thread of the host and has one thread. For tests.
#pragma once

#include <stdint.h>
#include <time.h>

#define __device__
#define __global__
#define __shared__

struct PacelineIndex {
  uint32_t x;
};
static thread_local PacelineIndex blockIdx{0};
static const PacelineIndex threadIdx{0}, blockDim{1};

// A test holds a block at its nth barrier, as a GPU that stops in the middle of an operation.
extern "C" {
int32_t paceline_hold_block = -1;
uint64_t paceline_hold_at = 0;
int32_t paceline_held_block = -1;  // it has come there
}
static thread_local uint64_t paceline_barriers = 0;

inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline void paceline_rest(long ns) {
  timespec rest{0, ns};
  nanosleep(&rest, nullptr);
}

inline void __syncthreads() {
  paceline_barriers++;
  while (__atomic_load_n(&paceline_hold_block, __ATOMIC_ACQUIRE) == static_cast<int32_t>(blockIdx.x) &&
         paceline_barriers >= __atomic_load_n(&paceline_hold_at, __ATOMIC_RELAXED)) {
    __atomic_store_n(&paceline_held_block, static_cast<int32_t>(blockIdx.x), __ATOMIC_RELEASE);
    paceline_rest(1'000'000);
  }
}

namespace paceline {

template <class T>
inline T load_relaxed(const T* at) {
  return __atomic_load_n(at, __ATOMIC_RELAXED);
}
template <class T, class V>
inline void store_relaxed(T* at, V value) {
  __atomic_store_n(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
inline uint64_t load_acquire(const uint64_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store_release(uint64_t* at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

inline uint64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

inline void pause() { paceline_rest(50'000); }

}  // namespace paceline
