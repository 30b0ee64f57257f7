// A group of API calls of one thread, and what its messages have in common. Read by whoever sees the calls: the
// profiler's events, or the shim.
#pragma once

#include "comm.h"
#include "events.h"

namespace paceline::nccl {

uint64_t next_group();
// Nothing to keep where nobody is watching: without a second profiler NCCL does well without a handle.
bool is_idle(const Comm* comm);
// nullptr, counted, where there is no place.
Event* take(Kind kind, Comm* comm);
void join_group(Event* group, Event* call);
// `name`: as NCCL calls the function, which may be an all-to-all that it makes of messages.
void note_message(Event* group, const Event* call, const char* name, void* stream);
// Event bits asked for when the group began.
uint32_t events_of(const Event* group);

}  // namespace paceline::nccl
