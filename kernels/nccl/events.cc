#include "events.h"

#include "pool.h"

namespace paceline::nccl {
namespace {

Pool<Event, kEventsMax, 1024> events;
Pool<ProxyOp, kProxyOpsMax, 256> proxy_ops;

}  // namespace

Event* take_event(Kind kind, Comm* comm) {
  Event* event = events.take();
  if (event == nullptr) return nullptr;
  event->kind = kind;
  event->channel = 0;
  event->channels = 0;
  event->algorithm = 0;
  event->outer = false;
  event->flags.store(0, std::memory_order_relaxed);
  event->comm = comm;
  event->parent = nullptr;
  event->chained = nullptr;
  event->next_task = nullptr;
  event->group = 0;
  if (kind == Kind::kGroupApi) {
    event->members = GroupPart{};
    event->members.alike = true;
  } else {
    OperationPart& part = event->operation;
    part.ticket = -1;
    part.previous = part.next = part.next_member = part.tasks = part.owner = nullptr;
    part.count = 0;
    part.peer = -1;
    part.expected.store(0, std::memory_order_relaxed);
    part.stopped.store(0, std::memory_order_relaxed);
    part.kernel_seen.store(false, std::memory_order_relaxed);
    part.function = part.dtype = 0;
  }
  event->holds.store(1, std::memory_order_release);
  return event;
}

ProxyOp* take_proxy_op(Comm* comm) {
  ProxyOp* op = proxy_ops.take();
  if (op == nullptr) return nullptr;
  op->kind = Kind::kProxyOp;
  op->comm = comm;
  op->parent = nullptr;
  op->chained = nullptr;
  op->edge = -1;
  op->filled = op->oldest = 0;
  op->passed_ns = 0;
  for (uint8_t i = 0; i < kStepsInFlight; i++) {
    op->steps[i] = ProxyStep{};
    op->steps[i].kind = Kind::kProxyStep;
    op->steps[i].place = i;
  }
  op->open.store(true, std::memory_order_release);
  return op;
}

void give_proxy_op(ProxyOp* op) {
  Event* parent = op->parent;
  proxy_ops.give(op);
  if (parent != nullptr) release(parent);
}

void hold(Event* event) { event->holds.fetch_add(1, std::memory_order_relaxed); }

bool try_hold(Event* event) {
  int32_t held = event->holds.load(std::memory_order_relaxed);
  while (held > 0) {
    if (event->holds.compare_exchange_weak(held, held + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void release(Event* event) {
  while (event != nullptr) {
    int32_t left = event->holds.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if (left != 0) return;
    bool holds_parent = event->kind == Kind::kTask || event->kind == Kind::kKernel;
    Event* parent = holds_parent ? event->parent : nullptr;
    event->kind = Kind::kFree;
    events.give(event);
    event = parent;
  }
}

uint32_t events_in_use() { return events.in_use(); }
uint32_t proxy_ops_in_use() { return proxy_ops.in_use(); }

}  // namespace paceline::nccl
