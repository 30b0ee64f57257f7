// Groups of API calls, the calls, and the tasks that NCCL makes of them.
#include "callbacks.h"
#include "chain.h"
#include "groups.h"
#include "names.h"
#include "operations.h"
#include "outer.h"
#include "plugin.h"

#include <utility>

namespace paceline::nccl {
namespace {

Event* event_of(void* handle, Kind kind) {
  auto* event = static_cast<Event*>(handle);
  return event != nullptr && event->kind == kind ? event : nullptr;
}

// Where no handle is left: without one for the group NCCL 2.27 would not tell of the calls either.
Event* spare_group() {
  static Event spare;
  static const bool made = [] {
    spare.kind = Kind::kOther;
    spare.holds.store(1 << 30);  // never given back
    return true;
  }();
  return made ? &spare : nullptr;
}

// All calls of a communicator that are captured into CUDA graphs share a handle, which the graphs name as a parent
// for ever: what is said of replays is the same for all of them, and graphs would use up the pool.
Event* captured_call(Comm* comm) {
  if (!plugin().captured.exchange(true)) choose_events();
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (comm->captured == nullptr && (comm->captured = take(Kind::kApi, comm)) != nullptr) {
    mark(comm->captured, kCaptured);
    hold(comm->captured);
  }
  return comm->captured;
}

bool kernels_asked(const Event* group) {
  return group != nullptr && (group->members.events & events_asked() & event::kKernelCh) != 0;
}

// The call behind a task: of version 5, and still one of this communicator.
Event* call_of(const Comm* comm, void* parent) {
  Event* call = event_of(parent, Kind::kApi);
  if (call == nullptr || call->comm != comm) return nullptr;
  return call->operation.owner != nullptr ? call->operation.owner : call;
}

struct Task {
  uint8_t function, dtype, channels;
  uint64_t count;
  int32_t peer;
};

Task read_task(const Comm* comm, const Descriptor& descriptor, uint64_t type, int version) {
  if (type == event::kColl) {
    uint8_t function = function_code(descriptor.coll.function);
    return Task{function, dtype_code(descriptor.coll.dtype), descriptor.coll.channels, descriptor.coll.count,
                root_of(function, descriptor.coll.root, comm)};
  }
  bool known = descriptor.p2p.peer >= 0 && static_cast<uint32_t>(descriptor.p2p.peer) < comm->nranks;
  return Task{function_code(descriptor.p2p.function), dtype_code(descriptor.p2p.dtype),
              version < 5 ? uint8_t{0} : descriptor.p2p.channels, descriptor.p2p.count,
              known ? descriptor.p2p.peer : -1};
}

void describe_task(Comm* comm, const Event* operation, const Descriptor& descriptor, Event* task) {
  task->algorithm = algorithm_code(descriptor.coll.algorithm);
  paceline_page_v1* page = live_page();
  if (page == nullptr || comm->slot < 0 || operation->operation.ticket < 0) return;
  paceline_describe_v1(page, operation->operation.ticket, task->algorithm, protocol_code(descriptor.coll.protocol),
                       descriptor.coll.channels);
  put(comm->frame->nccl_seq, descriptor.coll.sequence + 1);  // NCCL counts from 0, which here means unknown
}

// Version 5: a task of a call that was entered before, except that only now a message says to whom it goes.
void attach(Event* call, Event* task, const Task& what, uint64_t type, uint64_t now_ns) {
  if (call == nullptr) return;
  if (has(call, kCaptured)) {
    count(Counter::kReplays);
  } else if (type == event::kP2p && !has(call, kRound) && call->operation.ticket < 0) {
    enter(call, describe(what.function, what.dtype, what.count, what.peer), events_asked(), now_ns);
  }
  add_task(call, task, what.channels, (events_asked() & event::kKernelCh) != 0);
}

// Version 4: the task is the first that is seen of the call.
void enter_task(Event* group, Event* task, const Task& what, uint64_t now_ns) {
  task->group = group != nullptr ? group->group : next_group();
  enter(task, describe(what.function, what.dtype, what.count, what.peer), events_of(group), now_ns);
  if (kernels_asked(group) && what.channels > 0 && what.channels <= PACELINE_CHANNELS_MAX) {
    task->operation.expected.store(what.channels, std::memory_order_release);
  }
}

}  // namespace

void* start_group(Comm* comm, const Descriptor& descriptor, uint64_t type, uint64_t) {
  if (is_idle(comm)) return nullptr;
  Event* group = take(Kind::kGroupApi, comm);
  if (group == nullptr) return spare_group();
  group->group = next_group();
  group->members.events = events_asked();
  group->chained = chain_start(comm, descriptor, type, chained_handle(descriptor.parent), nullptr);
  return group;
}

void* start_call(Comm* comm, const Descriptor& descriptor, uint64_t type, uint64_t now_ns) {
  if (is_idle(comm)) return nullptr;
  bool message = type == event::kP2pApi;
  bool captured = message ? descriptor.p2p_api.captured : descriptor.coll_api.captured;
  if (captured && !comm->chained) return captured_call(comm);
  if (Event* made = captured ? nullptr : outer_call(comm)) {  // entered already
    if (made->chained == nullptr) {
      made->chained = chain_start(comm, descriptor, type, chained_handle(descriptor.parent), nullptr);
    }
    return made;
  }
  const char* name = message ? descriptor.p2p_api.function : descriptor.coll_api.function;
  uint8_t function = function_code(name);
  uint8_t dtype = dtype_code(message ? descriptor.p2p_api.dtype : descriptor.coll_api.dtype);
  uint64_t count = message ? descriptor.p2p_api.count : descriptor.coll_api.count;
  int32_t root = message ? -1 : root_of(function, descriptor.coll_api.root, comm);
  Event* call = take(Kind::kApi, comm);
  if (call == nullptr) {
    if (!captured && !message) enter_without_handle(comm, describe(function, dtype, count, root), now_ns);
    return nullptr;
  }
  call->operation.function = function;
  call->operation.dtype = dtype;
  call->operation.count = count;
  Event* group = event_of(descriptor.parent, Kind::kGroupApi);
  join_group(group, call);
  if (captured) {
    mark(call, kCaptured);
    hold(call);  // for ever: the graph names it as a parent at every replay
    if (!plugin().captured.exchange(true)) choose_events();
  } else if (!message) {
    enter(call, describe(function, dtype, count, root), events_of(group), now_ns);
    mark_entered(call, descriptor.coll_api.stream, group != nullptr);
  } else if (group != nullptr) {
    note_message(group, call, name, descriptor.p2p_api.stream);
  }
  call->chained = chain_start(comm, descriptor, type, chained_handle(descriptor.parent), nullptr);
  return call;
}

void* start_launch(Comm* comm, const Descriptor& descriptor, uint64_t type, uint64_t now_ns) {
  if (is_idle(comm)) return nullptr;
  if (comm->slot >= 0 && live_page() != nullptr && comm->live.load(std::memory_order_acquire)) {
    put(comm->frame->enqueued_ns, now_ns);
  }
  note_launch(comm);
  return start_other(comm, descriptor, type);
}

void* start_task(Comm* comm, const Descriptor& descriptor, uint64_t type, int version, uint64_t now_ns) {
  if (is_idle(comm)) return nullptr;
  Task what = read_task(comm, descriptor, type, version);
  bool called = version < 5 && comm->called.load(std::memory_order_relaxed);
  Event* task = take(Kind::kTask, comm);
  if (task == nullptr) {
    bool is_round = version < 5 && type == event::kColl && !called;
    if (is_round) enter_without_handle(comm, describe(what.function, what.dtype, what.count, what.peer), now_ns);
    return nullptr;
  }
  task->channels = what.channels;
  Event* call = version >= 5 ? call_of(comm, descriptor.parent)
                : called     ? outer_call_of_task(comm, what.function, what.count * dtype_bytes(what.dtype))
                             : nullptr;
  Event* group = version < 5 ? event_of(descriptor.parent, Kind::kGroupApi) : nullptr;
  if (version < 5 && !called) enter_task(group, task, what, now_ns);
  else attach(call, task, what, type, now_ns);
  if (type == event::kColl) describe_task(comm, call != nullptr ? call : task, descriptor, task);
  if (version < 5 && type == event::kP2p && !plugin().messages_v4.exchange(true)) choose_events();
  if (is_chained()) {
    void* parent = chained_handle(descriptor.parent);
    void* owner = version < 5 ? nullptr
                              : chained_handle(type == event::kColl ? descriptor.coll.parent_group
                                                                    : descriptor.p2p.parent_group);
    task->chained = chain_start(comm, descriptor, type, parent, owner);
  }
  return task;
}

void* start_other(Comm* comm, const Descriptor& descriptor, uint64_t type) {
  if (comm == nullptr || !comm->chained) return nullptr;
  void* chained = chain_start(comm, descriptor, type, chained_handle(descriptor.parent), nullptr);
  if (chained == nullptr) return nullptr;
  Event* event = take(Kind::kOther, comm);
  if (event == nullptr) {
    chain_stop(chained);
    return nullptr;
  }
  event->chained = chained;
  return event;
}

void stop_event(Event* event, int version, uint64_t now_ns) {
  if (event->outer) return chain_stop(std::exchange(event->chained, nullptr));  // its maker ends it
  if (!mark(event, kStopped)) return;
  chain_stop(event->chained);
  if (event->kind == Kind::kGroupApi) {
    Event* call = event->members.first;
    event->members.first = nullptr;
    bool kernels = kernels_asked(event);
    while (call != nullptr) {
      Event* next = call->operation.next_member;
      call->parent = nullptr;
      mark_left(call->comm);
      returned(call, kernels, now_ns);
      release(call);
      call = next;
    }
    look_at_detail();
  } else if (event->kind == Kind::kApi && event->parent == nullptr) {
    returned(event, false, now_ns);
  } else if (event->kind == Kind::kTask && version < 5) {
    returned(event, event->operation.expected.load(std::memory_order_acquire) > 0, now_ns);
  }
  release(event);
}

void* chained_handle(void* handle) {
  if (handle == nullptr) return nullptr;
  switch (*static_cast<Kind*>(handle)) {
    case Kind::kProxyOp:
      return static_cast<ProxyOp*>(handle)->chained;
    case Kind::kProxyStep:
      return static_cast<ProxyStep*>(handle)->chained;
    default:
      return static_cast<Event*>(handle)->chained;
  }
}

}  // namespace paceline::nccl
