// What each event does, for both versions of the interface.
#pragma once

#include "comm.h"
#include "events.h"

namespace paceline::nccl {

// Handles may be nullptr: NCCL then names no parent, and leaves out the steps of a proxy operation.
void* start_group(Comm* comm, const Descriptor& descriptor, uint64_t type, uint64_t now_ns);
void* start_call(Comm* comm, const Descriptor& descriptor, uint64_t type, uint64_t now_ns);
void* start_launch(Comm* comm, const Descriptor& descriptor, uint64_t type, uint64_t now_ns);
void* start_task(Comm* comm, const Descriptor& descriptor, uint64_t type, int version, uint64_t now_ns);
void* start_kernel(const Descriptor& descriptor, uint64_t now_ns);
void* start_proxy_op(Comm* comm, const Descriptor& descriptor, uint64_t now_ns);
void* start_proxy_step(const Descriptor& descriptor, uint64_t now_ns);
void* start_other(Comm* comm, const Descriptor& descriptor, uint64_t type);

void stop_event(Event* event, int version, uint64_t now_ns);
void stop_kernel(Event* kernel, uint64_t now_ns);
void stop_proxy_op(ProxyOp* op, uint64_t now_ns);
void stop_proxy_step(ProxyStep* step, uint64_t now_ns);
void end_of_calls(Event* group, uint64_t now_ns);
void record_step(ProxyStep* step, int state, const StateArguments* arguments, uint64_t now_ns);

// The handle of the second profiler behind one of ours.
void* chained_handle(void* handle);

}  // namespace paceline::nccl
