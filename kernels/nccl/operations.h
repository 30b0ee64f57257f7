// Open operations of a communicator: entered in the page, completed when their end is seen, or known to be past.
#pragma once

#include "comm.h"
#include "events.h"

namespace paceline::nccl {

// An operation as its signature sees it; `peer`: root, or the other side of a message, -1 where there is none.
paceline_operation_v1 describe(uint8_t function, uint8_t dtype, uint64_t count, int32_t peer);
// `root` where the function has one and it is a member, else -1.
int32_t root_of(uint8_t function, int32_t root, const Comm* comm);
// Enters `operation` in the page and in the communicator's list. `events`: what was asked for when its group began.
void enter(Event* operation, const paceline_operation_v1& what, uint32_t events, uint64_t now_ns);
// Counts a collective for which there was no handle: rounds advance on all ranks alike, whatever a rank has left.
void enter_without_handle(Comm* comm, const paceline_operation_v1& what, uint64_t now_ns);
// The call has returned and all is launched. `kernels`: NCCL was asked for kernel events all the while.
void returned(Event* operation, bool kernels, uint64_t now_ns);
// One channel of its kernels has stopped.
void kernel_stopped(Event* operation, uint64_t now_ns);
// The GPU will say when it is through with it; and where that does not hold any more.
void set_marked(Event* operation, uint64_t round);
void forget_marks(Comm* comm);
// The first transfer over the network: from now on its slices are more than "not seen".
void note_proxied(Comm* comm);
// Its call came back with an error: it will not be carried out.
void fail(Event* operation, uint64_t now_ns);
// The communicator is closed: what is still open has no end.
void abandon_operations(Comm* comm);

// Ties a task to its operation, which it holds; `channels` kernels will come where `kernels` were asked for.
void add_task(Event* operation, Event* task, uint8_t channels, bool kernels);
}  // namespace paceline::nccl
