#include "registry.h"

#include <string.h>

#include <mutex>

#include "forward.h"
#include "plugin.h"
#include "text.h"

namespace paceline::nccl {
namespace {

constexpr uint32_t kPlaces = 4096, kProbesMax = 64;
constexpr int kStartsMax = 256;

// Open addressing; a place that was used stays in the way of searches, and is used again.
struct Place {
  std::atomic<Handle> handle{nullptr};
  std::atomic<Comm*> comm{nullptr};
};
Place places[kPlaces];
const Handle kLeft = reinterpret_cast<Handle>(uintptr_t{1});

struct Running : Start {
  bool used, in_call;
  Comm* comm;
  Handle handle;  // once known
  uint64_t since;
};

std::mutex mutex;  // all below, and changes of the places
Running starts[kStartsMax];
std::atomic<int> running_count{0};
bool wait_is_ours = false;

uint32_t place_of(Handle handle, uint32_t probe) {
  uint64_t mixed = paceline_mix64_v1(reinterpret_cast<uintptr_t>(handle));
  return static_cast<uint32_t>(mixed + probe) % kPlaces;
}

Place* find_place(Handle handle) {
  if (handle == nullptr) return nullptr;
  for (uint32_t probe = 0; probe < kProbesMax; probe++) {
    Place& place = places[place_of(handle, probe)];
    Handle there = place.handle.load(std::memory_order_acquire);
    if (there == handle) return &place;
    if (there == nullptr) return nullptr;
  }
  return nullptr;
}

void bind(Handle handle, Comm* comm) {
  if (handle == nullptr || comm == nullptr || find_place(handle) != nullptr) return;
  for (uint32_t probe = 0; probe < kProbesMax; probe++) {
    Place& place = places[place_of(handle, probe)];
    Handle there = place.handle.load(std::memory_order_relaxed);
    if (there != nullptr && there != kLeft) continue;
    place.comm.store(comm, std::memory_order_release);
    place.handle.store(handle, std::memory_order_release);
    return;
  }
  count(Counter::kDropped);
}

// What is waited for in the bootstrap, unless somebody outside says already what this process waits for.
void show_wait(const Start& start) {
  paceline_page_v1* page = live_page();
  if (page == nullptr || wait_is_ours || get(page->process().host_wait) != PACELINE_HOST_WAIT_NONE) return;
  wait_is_ours = true;
  Text<64> what;
  what.add("%s", start.function);
  if (start.nranks > 0 && start.rank >= 0) what.add(" rank %d of %d", start.rank, start.nranks);
  else if (start.nranks > 0) what.add(" to %d ranks", start.nranks);
  paceline_page_set_host_wait_v1(page, PACELINE_HOST_WAIT_BOOTSTRAP, what.get(), -1);
}

void end_wait() {
  if (running_count.fetch_sub(1) != 1 || !wait_is_ours) return;
  wait_is_ours = false;
  paceline_page_v1* page = live_page();
  bool ours = page != nullptr && get(page->process().host_wait) == PACELINE_HOST_WAIT_BOOTSTRAP;
  if (ours) paceline_page_set_host_wait_v1(page, PACELINE_HOST_WAIT_NONE, nullptr, -1);
}

// A communicator whose size and rank only NCCL knew.
Comm* late_comm(const Running& start, Handle handle, const void* caller) {
  auto count_of = find<Function::ncclCommCount>(caller), rank_of = find<Function::ncclCommUserRank>(caller);
  Opening opening{start.hash, nullptr, 0, 0, 0, nullptr};
  if (count_of == nullptr || rank_of == nullptr) return nullptr;
  if (count_of(handle, &opening.nranks) != kSuccess || rank_of(handle, &opening.rank) != kSuccess) return nullptr;
  return claim_comm(opening, start.since);
}

// The caller's memory is read only while NCCL may write to it as well.
Handle handle_of(const Running& start) {
  if (start.handle != nullptr) return start.handle;
  return start.where != nullptr ? __atomic_load_n(start.where, __ATOMIC_ACQUIRE) : nullptr;
}

// `mutex` is held.
void finish(Running* start, Result result, const void* caller) {
  Handle handle = result == kSuccess ? handle_of(*start) : nullptr;
  if (start->comm == nullptr && handle != nullptr) start->comm = late_comm(*start, handle, caller);
  if (start->comm != nullptr) {
    is_through(start->comm);
    bind(handle, start->comm);
    if (result != kSuccess) close_comm(start->comm);
  }
  start->used = false;
  end_wait();
}

}  // namespace

Comm* find_comm(Handle handle) {
  Place* place = find_place(handle);
  return place != nullptr ? place->comm.load(std::memory_order_acquire) : nullptr;
}

Comm* forget_comm(Handle handle) {
  std::lock_guard<std::mutex> guard(mutex);
  for (Running& start : starts) {
    if (start.used && !start.in_call && start.handle == handle) finish(&start, kSuccess, nullptr);
  }
  Place* place = find_place(handle);
  if (place == nullptr) return nullptr;
  place->handle.store(kLeft, std::memory_order_release);
  return place->comm.load(std::memory_order_acquire);
}

int begin_start(const Start& start) {
  tune_clock();  // before the first call is timed
  bool whole = start.nranks > 0 && start.hash != 0;
  uint64_t since = whole ? 0 : last_opened();
  Comm* comm = whole ? open_called_comm(Opening{start.hash, nullptr, 0, start.nranks, start.rank, nullptr}) : nullptr;
  std::lock_guard<std::mutex> guard(mutex);
  for (int i = 0; i < kStartsMax; i++) {
    if (starts[i].used) continue;
    static_cast<Start&>(starts[i]) = start;
    starts[i].used = starts[i].in_call = true;
    starts[i].comm = comm;
    starts[i].handle = nullptr;
    starts[i].since = since;
    running_count.fetch_add(1);
    show_wait(start);
    return i;
  }
  if (comm != nullptr) close_comm(comm);
  count(Counter::kDropped);
  return -1;
}

void end_start(int place, Result result, const void* caller) {
  if (place < 0) return;
  std::lock_guard<std::mutex> guard(mutex);
  Running& start = starts[place];
  if (result != kInProgress) return finish(&start, result, caller);
  start.in_call = false;
  if (start.comm == nullptr && start.parent != nullptr) return;  // a child: known when its parent is through
  start.handle = handle_of(start);
  bind(start.handle, start.comm);
}

void check_starts(Handle handle, Result state, const void* caller) {
  if (state == kInProgress || running_count.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard<std::mutex> guard(mutex);
  for (Running& start : starts) {
    if (!start.used || start.in_call) continue;
    bool meant = start.handle != nullptr ? start.handle == handle
                                         : start.parent == handle || handle_of(start) == handle;
    if (meant) finish(&start, state, caller);
  }
}

uint64_t hash_bytes(const void* bytes, size_t size) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  uint64_t hash = size + 1;
  for (size_t i = 0; i + 8 <= size; i += 8) {
    uint64_t word;
    memcpy(&word, at + i, 8);
    hash = paceline_mix64_v1(hash ^ word);
  }
  return hash == 0 ? 1 : hash;
}

uint64_t hash_child(Handle parent, uint64_t what) {
  Comm* comm = find_comm(parent);
  if (comm == nullptr) return 0;
  uint64_t ordinal = comm->children.fetch_add(1) + 1;
  uint64_t hash = paceline_mix64_v1(comm->id ^ paceline_mix64_v1(ordinal << 40 ^ what));
  return hash == 0 ? 1 : hash;
}

}  // namespace paceline::nccl
