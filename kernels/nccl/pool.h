// A bounded pool whose members are given out again in the order in which they came back, so that a handle which
// somebody still holds by mistake stays meaningless for as long as possible. Memory is taken from the system when
// a place is used for the first time and never given back.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace paceline::nccl {

// Dmitry Vyukov's bounded queue for many producers and consumers: a stalled thread delays only its own place.
template <class T, uint32_t kMax, uint32_t kFresh>
class Pool {
  static_assert((kMax & (kMax - 1)) == 0, "a power of two");

 public:
  // A place never used while few are in circulation, else the one that came back first.
  T* take() {
    T* items = memory();
    if (items == nullptr) return nullptr;
    if (used_.load(std::memory_order_relaxed) < kFresh) {
      if (T* fresh = take_fresh(items)) return fresh;
    }
    uint32_t place;
    if (pop(&place)) return &items[place];
    return take_fresh(items);
  }

  void give(const T* item) { push(static_cast<uint32_t>(item - items_.load(std::memory_order_relaxed))); }

  uint32_t in_use() const {
    return used_.load() - static_cast<uint32_t>(head_.load() - tail_.load());
  }

 private:
  struct Cell {
    std::atomic<uint64_t> turn;
    uint32_t place;
  };

  T* take_fresh(T* items) {
    uint32_t place = used_.load(std::memory_order_relaxed);
    while (place < kMax) {
      if (used_.compare_exchange_weak(place, place + 1, std::memory_order_relaxed)) return new (&items[place]) T();
    }
    return nullptr;
  }

  T* memory() {
    T* items = items_.load(std::memory_order_acquire);
    return items != nullptr ? items : map();
  }

  T* map() {
    size_t bytes = kMax * (sizeof(T) + sizeof(Cell));
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    T* items = static_cast<T*>(address);
    T* expected = nullptr;
    if (items_.compare_exchange_strong(expected, items, std::memory_order_acq_rel)) return items;
    munmap(address, bytes);
    return expected;
  }

  Cell& cell(uint64_t at) {
    return reinterpret_cast<Cell*>(items_.load(std::memory_order_relaxed) + kMax)[at & (kMax - 1)];
  }

  // A cell's turn counts from its index; zeroed memory stands for the index itself.
  uint64_t turn_of(uint64_t at) { return cell(at).turn.load(std::memory_order_acquire) + (at & (kMax - 1)); }
  void set_turn(uint64_t at, uint64_t turn) {
    cell(at).turn.store(turn - (at & (kMax - 1)), std::memory_order_release);
  }

  void push(uint32_t place) {
    uint64_t at = head_.load(std::memory_order_relaxed);
    for (;;) {
      auto difference = static_cast<int64_t>(turn_of(at) - at);
      if (difference == 0) {
        if (head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) break;
      } else if (difference < 0) {
        return;  // cannot happen: there are as many cells as items
      } else {
        at = head_.load(std::memory_order_relaxed);
      }
    }
    cell(at).place = place;
    set_turn(at, at + 1);
  }

  bool pop(uint32_t* place) {
    uint64_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      auto difference = static_cast<int64_t>(turn_of(at) - (at + 1));
      if (difference == 0) {
        if (tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) break;
      } else if (difference < 0) {
        return false;
      } else {
        at = tail_.load(std::memory_order_relaxed);
      }
    }
    *place = cell(at).place;
    set_turn(at, at + kMax);
    return true;
  }

  std::atomic<T*> items_{nullptr};
  std::atomic<uint32_t> used_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) std::atomic<uint64_t> tail_{0};
};

}  // namespace paceline::nccl
