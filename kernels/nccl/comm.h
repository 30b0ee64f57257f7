// Communicators of this process: NCCL's contexts. They outlive `finalize`, because proxies may be shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "abi.h"
#include "events.h"
#include "marker.h"
#include "page.h"

namespace paceline::nccl {

struct Comm {
  std::mutex mutex;  // the list of open operations and what follows it
  std::atomic<bool> live{false};
  int slot = -1;  // of the page; -1: seen by nobody, every call goes through all the same
  Frame* frame = nullptr;
  Edge* edges = nullptr;
  uint64_t hash = 0, id = 0, closed_order = 0;
  uint32_t instance = 0, nranks = 0, rank = 0;
  void* chained_context = nullptr;
  bool chained = false, announced = false;
  std::atomic<bool> called{false};  // its calls come through the shim, which owns the rounds
  bool starting = false;            // the shim is inside its initialisation
  bool profiled = false;            // the profiler has met it
  uint64_t opened_order = 0;
  std::atomic<uint32_t> children{0};  // communicators split off it
  Event *first = nullptr, *last = nullptr;  // open operations
  Event* captured = nullptr;                // stands for all its calls in CUDA graphs
  uint32_t open_count = 0;
  uint32_t flags = 0;           // FrameFlag bits as the page has them
  bool ended_unseen = true;     // nobody saw the end of the operation that ended last
  bool counts_exact = false;    // proxy steps were asked for since the first operation
  std::atomic<bool> proxied{false};
  Marks marks;
};

constexpr uint32_t kCommsMax = 1024;

// What `init` of both versions says.
struct Opening {
  uint64_t hash;
  const char* name;  // may be nullptr
  int nodes, nranks, rank;
  LogFunction log;  // may be nullptr
};

// For the profiler; never nullptr: where there is no place, a communicator that nobody sees (counted). One that the
// shim is initialising is taken over; where several could be meant, none, and the shim alone counts.
Comm* open_comm(const Opening& opening);
// For the shim, before NCCL initialises it; nullptr where there is no place. `is_through` when NCCL has.
Comm* open_called_comm(const Opening& opening);
void is_through(Comm* comm);
// For the shim, where size and rank are known only afterwards: the one that the profiler has opened since
// `last_opened()` said `since`, else a new one if `hash` is not 0, nullptr where several could be meant.
Comm* claim_comm(const Opening& opening, uint64_t since);
uint64_t last_opened();
void close_comm(Comm* comm);
Comm* detached_comm();

// Flags of the frame that depend on what is being observed. The communicator's mutex is held.
void show_flags(Comm* comm, uint32_t flags);

}  // namespace paceline::nccl
