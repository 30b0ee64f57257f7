// Access to memory that other processes read while it is written.
#pragma once

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace paceline {

using Word = uint64_t __attribute__((may_alias));

template <class T, class V>
inline void put(T& field, V value) {
  __atomic_store_n(&field, static_cast<T>(value), __ATOMIC_RELAXED);
}

template <class T>
inline T get(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_RELAXED);
}

// Single writer (a lock is held): a load and a store are enough.
template <class T, class V>
inline void add(T& field, V value) {
  put(field, static_cast<T>(get(field) + static_cast<T>(value)));
}

// Several writers without a lock.
template <class T, class V>
inline T add_shared(T& field, V value) {
  return __atomic_add_fetch(&field, static_cast<T>(value), __ATOMIC_RELAXED);
}

inline void put_words(void* target, const void* source, size_t bytes) {
  auto* to = static_cast<Word*>(target);
  const auto* from = static_cast<const Word*>(source);
  for (size_t i = 0; i < bytes / 8; i++) put(to[i], from[i]);
}

inline void get_words(void* target, const void* source, size_t bytes) {
  auto* to = static_cast<Word*>(target);
  const auto* from = static_cast<const Word*>(source);
  for (size_t i = 0; i < bytes / 8; i++) to[i] = get(from[i]);
}

inline void zero_words(void* target, size_t bytes) {
  auto* to = static_cast<Word*>(target);
  for (size_t i = 0; i < bytes / 8; i++) put(to[i], 0);
}

// The writer's side of a sequence lock (Boehm, MSPC 2012): odd while the block is written.
// Writers exclude each other by a mutex of their own process; nothing in the page can block them.
class SequenceWrite {
 public:
  explicit SequenceWrite(uint32_t& lock) : lock_(lock), value_(get(lock) | 1u) {
    put(lock_, value_);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~SequenceWrite() { __atomic_store_n(&lock_, value_ + 1, __ATOMIC_RELEASE); }
  SequenceWrite(const SequenceWrite&) = delete;
  SequenceWrite& operator=(const SequenceWrite&) = delete;

 private:
  uint32_t& lock_;
  uint32_t value_;
};

inline uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace paceline
