// System-scope accesses of a GPU: what it stores is seen by the CPUs and by other GPUs in this order. Needs sm_70.
#pragma once

#include <stdint.h>

namespace paceline {

__device__ inline uint64_t load_relaxed(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline uint32_t load_relaxed(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline uint64_t load_acquire(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline void store_relaxed(uint64_t* at, uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline void store_relaxed(uint32_t* at, uint32_t value) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ inline void store_relaxed(uint8_t* at, uint8_t value) {
  asm volatile("st.relaxed.sys.u8 [%0], %1;" ::"l"(at), "r"(static_cast<uint32_t>(value)) : "memory");
}
__device__ inline void store_release(uint64_t* at, uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// Of the GPU, not comparable with CLOCK_MONOTONIC: only its differences are written anywhere.
__device__ inline uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ inline void pause() { __nanosleep(200); }

}  // namespace paceline
