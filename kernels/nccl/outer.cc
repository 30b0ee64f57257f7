#include "outer.h"

#include "callbacks.h"
#include "groups.h"
#include "names.h"
#include "operations.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

struct Outer {
  Event* group;
  Event* call;
};
thread_local Outer here{};

paceline_operation_v1 operation_of(const ApiCall& what) {
  paceline_operation_v1 operation = describe(what.function, what.dtype, what.count, what.peer);
  operation.reduce_op = what.reduce_op;
  return operation;
}

bool is_message(uint8_t function) {
  return function == PACELINE_FUNCTION_SEND || function == PACELINE_FUNCTION_RECV;
}

// Members are linked newest first.
void put_in_order_of_calls(Event* group) {
  Event* ordered = nullptr;
  for (Event* call = group->members.first; call != nullptr;) {
    Event* next = call->operation.next_member;
    call->operation.next_member = ordered;
    ordered = call;
    call = next;
  }
  group->members.first = ordered;
}

Event* thread_group(Comm* comm) {
  if (here.group != nullptr) return here.group;
  Event* group = take(Kind::kGroupApi, comm);
  if (group == nullptr) return nullptr;
  group->group = next_group();
  group->members.events = events_asked();
  return here.group = group;
}

Event* make_call(Comm* comm, const ApiCall& what) {
  Event* group = thread_group(comm);
  Event* call = group != nullptr ? take(Kind::kApi, comm) : nullptr;
  if (call == nullptr) return nullptr;
  call->outer = true;
  call->operation.function = what.function;
  call->operation.dtype = what.dtype;
  call->operation.count = what.count;
  call->operation.peer = what.peer;
  join_group(group, call);
  return call;
}

}  // namespace

Event* begin_outer_call(Comm* comm, const ApiCall& what, uint64_t now_ns) {
  if (is_idle(comm)) return nullptr;
  bool message = is_message(what.function);
  Event* call = make_call(comm, what);
  if (call == nullptr) {
    if (!message) enter_without_handle(comm, operation_of(what), now_ns);
    return nullptr;
  }
  if (message) note_message(here.group, call, nullptr, nullptr);
  else enter(call, operation_of(what), here.group->members.events, now_ns);
  return here.call = call;
}

void end_outer_call(Event* call, bool failed, uint64_t now_ns) {
  here.call = nullptr;
  if (call == nullptr) return;
  // A message that failed is not entered later either.
  if (failed) {
    mark(call, kOver);
    fail(call, now_ns);
  }
  release(call);
}

void launch_outer_group(uint64_t now_ns) {
  Event* group = here.group;
  if (group == nullptr) return;
  put_in_order_of_calls(group);
  end_of_calls(group, now_ns);
  for (Event* call = group->members.first; call != nullptr; call = call->operation.next_member) {
    const OperationPart& part = call->operation;
    bool alone = is_message(part.function) && part.owner == nullptr && !has(call, kRound) && !has(call, kOver);
    if (!alone) continue;
    enter(call, describe(part.function, part.dtype, part.count, part.peer), group->members.events, now_ns);
  }
}

void end_outer_group(bool failed, uint64_t now_ns) {
  Event* group = here.group;
  here.group = nullptr;
  if (group == nullptr) return;
  if (failed) {
    for (Event* call = group->members.first; call != nullptr; call = call->operation.next_member) fail(call, now_ns);
  }
  stop_event(group, 5, now_ns);
}

Event* outer_call(const Comm* comm) {
  return here.call != nullptr && here.call->comm == comm ? here.call : nullptr;
}

Event* outer_call_of_task(const Comm* comm, uint8_t function, uint64_t bytes) {
  Event* found = nullptr;
  for (Event* call = here.group != nullptr ? here.group->members.first : nullptr; call != nullptr;
       call = call->operation.next_member) {
    const OperationPart& part = call->operation;
    Event* meant = part.owner != nullptr ? part.owner : call;
    bool same = call->comm == comm && part.function == function;
    if (!same || (meant == call && part.expected.load(std::memory_order_relaxed) != 0)) continue;
    if (part.count * dtype_bytes(part.dtype) == bytes) return meant;
    if (found == nullptr) found = meant;
  }
  return found;
}

}  // namespace paceline::nccl
