// NCCL's handles, and the initialisations that are under way: what a rank is doing before any plugin is called.
#pragma once

#include "api.h"
#include "comm.h"

namespace paceline::nccl {

// nullptr where the communicator is not seen by the shim.
Comm* find_comm(Handle handle);
// Forgets the handle, which NCCL is about to free; the communicator, to be closed when NCCL has.
Comm* forget_comm(Handle handle);

struct Start {
  const char* function;  // as the operator is told
  Handle* where;         // NCCL puts the handle there, at the latest when it is through
  Handle parent;         // nullptr where there is none
  uint64_t hash;         // the same for all members; 0: no member can tell
  int nranks, rank;      // -1: known only afterwards
};

// Before NCCL is called; -1 where there are too many (counted).
int begin_start(const Start& start);
// After the call, whose group has ended; `result` may be "in progress": `check_starts` has the end then.
void end_start(int start, Result result, const void* caller);
// `state` of a communicator, or of the parent of one that is not known yet, as NCCL tells it.
void check_starts(Handle handle, Result state, const void* caller);

uint64_t hash_bytes(const void* bytes, size_t size);
// Of the next child of a communicator: all members count them alike. 0 where the parent is not known.
uint64_t hash_child(Handle parent, uint64_t what);

}  // namespace paceline::nccl
