// A second profiler plugin behind this one: NCCL loads only one, PACELINE_CHAIN_PROFILER names the other.
#pragma once

#include "abi.h"
#include "comm.h"

namespace paceline::nccl {

// Loads it at the first call; `version` is the one that NCCL speaks with us.
void open_chain(int version);
bool is_chained();
uint32_t chained_events();  // what it asks for
bool chain_wants_more();    // since the last `chained_events`

void chain_init(Comm* comm, const Opening& opening);
void chain_finalize(Comm* comm);
// Its handle for an event of which it wants to know; nullptr otherwise. `parent` and `group` are its own handles.
void* chain_start(Comm* comm, const Descriptor& descriptor, uint64_t type, void* parent, void* group);
void chain_stop(void* handle);
void chain_record(void* handle, int state, StateArguments* arguments);

}  // namespace paceline::nccl
