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

// Never nullptr: where there is no place, a communicator that nobody sees (counted).
Comm* open_comm(const Opening& opening);
void close_comm(Comm* comm);
Comm* detached_comm();

// Flags of the frame that depend on what is being observed. The communicator's mutex is held.
void show_flags(Comm* comm, uint32_t flags);

}  // namespace paceline::nccl
