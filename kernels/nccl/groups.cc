#include "groups.h"

#include "callbacks.h"
#include "names.h"
#include "operations.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

constexpr uint32_t kAllToAllRanksMin = 4;  // below it, uneven exchanges look even by chance

// Sends and receives of one group that reach every member alike are one round, as NCCL carries out an all-to-all.
bool is_all_to_all_group(const GroupPart& members) {
  if (members.comm == nullptr || !members.alike) return false;
  uint32_t nranks = members.comm->nranks;
  if (members.named) return members.sends + members.receives == 2 * nranks;
  return nranks >= kAllToAllRanksMin && members.sends == nranks && members.receives == nranks;
}

void enter_all_to_all(Event* group, uint64_t now_ns) {
  GroupPart& members = group->members;
  Event* owner = nullptr;
  for (Event* call = members.first; call != nullptr; call = call->operation.next_member) {
    bool entered = call->operation.ticket >= 0 || has(call, kListed);  // a collective of the same group
    if (call->comm != members.comm || entered || has(call, kCaptured)) continue;
    if (owner == nullptr) owner = call;
    if (call != owner) call->operation.owner = owner;
  }
  if (owner == nullptr) return;
  mark(owner, kRound);
  uint64_t count = members.count * members.comm->nranks;
  enter(owner, describe(PACELINE_FUNCTION_ALL_TO_ALL, members.dtype, count, -1), members.events, now_ns);
  mark_entered(owner, members.stream, true);
}

}  // namespace

uint64_t next_group() { return plugin().groups.fetch_add(1, std::memory_order_relaxed) + 1; }

bool is_idle(const Comm* comm) { return comm == nullptr || (comm->slot < 0 && !comm->chained); }

Event* take(Kind kind, Comm* comm) {
  Event* event = take_event(kind, comm);
  if (event == nullptr) count(Counter::kDropped);
  return event;
}

void join_group(Event* group, Event* call) {
  call->parent = group;
  call->group = group != nullptr ? group->group : next_group();
  if (group == nullptr) return;
  hold(call);  // until the group ends
  call->operation.next_member = group->members.first;
  group->members.first = call;
}

void note_message(Event* group, const Event* call, const char* name, void* stream) {
  GroupPart& members = group->members;
  bool first = members.sends + members.receives == 0;
  if (first) {
    members.comm = call->comm;
    members.stream = stream;
    members.count = call->operation.count;
    members.dtype = call->operation.dtype;
  }
  members.alike &= members.comm == call->comm && members.count == call->operation.count &&
                   members.dtype == call->operation.dtype;
  members.named |= is_all_to_all(name);
  call->operation.function == PACELINE_FUNCTION_SEND ? members.sends++ : members.receives++;
}

uint32_t events_of(const Event* group) { return group != nullptr ? group->members.events : events_asked(); }

void end_of_calls(Event* group, uint64_t now_ns) {
  if (is_all_to_all_group(group->members)) enter_all_to_all(group, now_ns);
}

}  // namespace paceline::nccl
