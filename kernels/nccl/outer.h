// Calls that a thread makes through the LD_PRELOAD shim. What the profiler hears while NCCL is inside such a call is
// about the same operation: it finds the call here, in a slot of the thread, and takes part instead of counting it
// again (docs/adr/0034-nccl-shim.md).
#pragma once

#include "comm.h"
#include "events.h"

namespace paceline::nccl {

struct ApiCall {
  uint64_t count;    // elements, as called
  int32_t peer;      // root, or the other side of a message; -1 where there is none
  uint8_t function;  // PACELINE_FUNCTION_*
  uint8_t dtype;
  uint8_t reduce_op;
};

// Enters the call into the thread's group of calls, which begins with its first; nullptr where there is no place.
Event* begin_outer_call(Comm* comm, const ApiCall& what, uint64_t now_ns);
// NCCL is through with the call; `failed`: with an error, so that there will be no operation.
void end_outer_call(Event* call, bool failed, uint64_t now_ns);
// All calls of the group are made and NCCL is about to launch them: messages are entered with their peers.
void launch_outer_group(uint64_t now_ns);
void end_outer_group(bool failed, uint64_t now_ns);

// For the profiler: the call of this communicator that this thread is in, nullptr where it is in none.
Event* outer_call(const Comm* comm);
// For version 4, whose tasks name no call: the one of this thread's group that the task carries out.
Event* outer_call_of_task(const Comm* comm, uint8_t function, uint64_t bytes);

}  // namespace paceline::nccl
