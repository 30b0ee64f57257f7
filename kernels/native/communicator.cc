// Opening and closing communicators: slots, their frames and detail blocks.
#include <stdlib.h>

#include <new>

#include "page.h"

namespace paceline {
namespace {

constexpr uint32_t kCountingSources = PACELINE_SOURCE_NCCL_PROFILER | PACELINE_SOURCE_NCCL_SHIM |
                                      PACELINE_SOURCE_KERNEL | PACELINE_SOURCE_SIMULATOR;

Communicator* create_communicator(uint32_t slot) {
  void* memory = calloc(1, sizeof(Communicator));
  if (memory == nullptr) return nullptr;
  auto* communicator = new (memory) Communicator();
  communicator->slot = slot;
  return communicator;
}

bool is_reusable(paceline_page_v1* page, Communicator* communicator) {
  std::lock_guard<std::mutex> guard(communicator->mutex);
  return !communicator->open && get(page->frame(communicator->slot).open_ops) == 0;
}

// A slot never used, else the one closed longest ago: the agent has then seen its last frame.
int find_slot(paceline_page_v1* page) {
  int oldest = -1;
  uint64_t oldest_order = UINT64_MAX;
  for (uint32_t slot = 0; slot < PACELINE_COMMUNICATORS_MAX; slot++) {
    Communicator* communicator = page->communicators[slot].load(std::memory_order_acquire);
    if (communicator == nullptr) return static_cast<int>(slot);
    if (communicator->closed_order < oldest_order && is_reusable(page, communicator)) {
      oldest = static_cast<int>(slot);
      oldest_order = communicator->closed_order;
    }
  }
  return oldest;
}

void reset(Communicator* communicator) {
  communicator->incarnation++;
  communicator->untracked[0] = communicator->untracked[1] = 0;
  communicator->completed_ns = communicator->total_ns = 0;
  for (auto& kept : communicator->kept_entered) kept = 0;
  for (auto& pair : communicator->pair_completed_ns) pair[0] = pair[1] = 0;
  communicator->reusable_first = 0;
  communicator->reusable_count = PACELINE_ROUNDS_NEWEST_MAX;
  for (uint32_t i = 0; i < PACELINE_ROUNDS_NEWEST_MAX; i++) communicator->reusable[i] = static_cast<uint8_t>(i);
  communicator->peer_count = 0;
  for (auto& entry : communicator->peer_table) entry = 0;
  reset_nodes(communicator);
}

void write_frame(paceline_page_v1* page, uint32_t slot, const paceline_communicator_v1& opened) {
  Frame& frame = page->frame(slot);
  SequenceWrite write(frame.lock);
  constexpr size_t kAfterLock = offsetof(Frame, sources) + sizeof(frame.sources);
  static_assert(kAfterLock % 8 == 0, "the rest of a frame is written in words");
  put(frame.sources, opened.sources);
  zero_words(reinterpret_cast<char*>(&frame) + kAfterLock, sizeof(Frame) - kAfterLock);
  zero_words(page->detail(slot), PACELINE_DETAIL_STRIDE);
  for (uint32_t i = 0; i < PACELINE_EDGES_MAX; i++) put(page->edges(slot)[i].peer, -1);
  put(frame.version, PACELINE_LAYOUT_VERSION);
  put(frame.frame_bytes, sizeof(Frame));
  put(frame.comm, opened.comm);
  put(frame.instance, opened.instance);
  put(frame.comm_rank, opened.comm_rank);
  put(frame.nranks, opened.nranks);
  put(frame.global_rank, opened.global_rank);
  put(frame.slot, slot);
  put(frame.peer, -1);
  put(frame.flags, opened.sources & kCountingSources ? 0u : PACELINE_FRAME_FLAG_COUNTS_UNOBSERVABLE + 0u);
  put(frame.magic, PACELINE_FRAME_MAGIC);
}

int refuse(paceline_page_v1* page) {
  add_shared(page->process().communicators_dropped, 1);
  return -1;
}

}  // namespace

Communicator* find_communicator(paceline_page_v1* page, int64_t slot) {
  Communicator* found = slot >= 0 && slot < static_cast<int64_t>(PACELINE_COMMUNICATORS_MAX)
                            ? page->communicators[slot].load(std::memory_order_acquire)
                            : nullptr;
  if (found == nullptr) count_error(page);
  return found;
}

}  // namespace paceline

using namespace paceline;

extern "C" {

int paceline_open_communicator_v1(paceline_page_v1* page, const paceline_communicator_v1* opened) {
  if (!page->usable()) return -1;
  std::lock_guard<std::mutex> guard(page->mutex);
  int slot = find_slot(page);
  if (slot < 0) return refuse(page);
  auto index = static_cast<uint32_t>(slot);
  Communicator* communicator = page->communicators[index].load(std::memory_order_acquire);
  bool fresh = communicator == nullptr;
  if (fresh) communicator = create_communicator(index);
  if (communicator == nullptr) return refuse(page);
  {
    std::lock_guard<std::mutex> inner(communicator->mutex);
    reset(communicator);
    write_frame(page, index, *opened);
    communicator->open = true;
  }
  if (fresh) page->communicators[index].store(communicator, std::memory_order_release);
  Process& process = page->process();
  SequenceWrite write(process.lock);
  add(process.frames_open, 1);
  put(process.sources, get(process.sources) | opened->sources);
  return slot;
}

void paceline_close_communicator_v1(paceline_page_v1* page, int slot) {
  if (!page->usable()) return;
  Communicator* communicator = find_communicator(page, slot);
  if (communicator == nullptr) return;
  std::lock_guard<std::mutex> guard(page->mutex);
  {
    std::lock_guard<std::mutex> inner(communicator->mutex);
    if (!communicator->open) return count_error(page);
    communicator->open = false;
    communicator->closed_order = ++page->closed_count;
    Frame& frame = page->frame(communicator->slot);
    SequenceWrite write(frame.lock);
    put(frame.flags, get(frame.flags) | PACELINE_FRAME_FLAG_CLOSED);
  }
  SequenceWrite write(page->process().lock);
  add(page->process().frames_open, -1);
}

void paceline_add_flags_v1(paceline_page_v1* page, int slot, uint32_t flags) {
  if (!page->usable()) return;
  Communicator* communicator = find_communicator(page, slot);
  if (communicator == nullptr) return;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  Frame& frame = page->frame(communicator->slot);
  SequenceWrite write(frame.lock);
  put(frame.flags, get(frame.flags) | flags);
}

}  // extern "C"
