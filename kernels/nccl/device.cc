// What the proxy and the GPU do: kernels of channels, and the steps of network transfers. Counters are added to
// without a lock; only the proxy thread of an operation writes its steps.
#include <unistd.h>

#include "callbacks.h"
#include "chain.h"
#include "operations.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

constexpr uint8_t kKernelRuns = 1;
constexpr uint64_t kStandstillNs = 1'000'000'000;  // a wait before the pipeline has filled counts from here on
constexpr uint8_t kSend = 0, kReceive = 1;

template <class T>
T* handle_of(void* handle, Kind kind) {
  auto* target = static_cast<T*>(handle);
  return target != nullptr && target->kind == kind ? target : nullptr;
}

// nullptr where nobody may write the frame any more.
Frame* frame_of(const Comm* comm) {
  if (comm == nullptr || comm->slot < 0 || live_page() == nullptr) return nullptr;
  if (comm->live.load(std::memory_order_acquire)) return comm->frame;
  count(Counter::kLate);
  return nullptr;
}

Event* operation_of(Event* task) { return task->parent != nullptr ? task->parent : task; }

// Rings are group 0; NCCL's two trees share the channels by halves.
uint8_t edge_group(const Event* task, uint8_t channel) {
  if (task == nullptr || task->algorithm != PACELINE_ALGORITHM_TREE) return 0;
  return channel < (task->channels + 1) / 2 ? 1 : 2;
}

void put_state(Frame* frame, const ProxyOp& op, uint8_t state) {
  paceline_channel_v1& channel = frame->channel[op.channel % PACELINE_CHANNELS_MAX];
  put(op.direction == kSend ? channel.send_state : channel.recv_state, state);
}

void add_wait(Frame* frame, ProxyOp* op, const ProxyStep& step, uint64_t now_ns) {
  uint64_t since = step.ready_ns > op->passed_ns ? step.ready_ns : op->passed_ns;
  op->passed_ns = now_ns;
  if (step.ready_ns == 0 || now_ns <= since) return;
  uint64_t wait_ns = now_ns - since;
  bool filled = step.step >= op->filled;
  if (filled) add_shared((op->direction == kSend ? frame->send_wait_ns : frame->recv_wait_ns)[0], wait_ns);
  if (op->edge >= 0 && (filled || wait_ns >= kStandstillNs)) add_shared(op->comm->edges[op->edge].wait_ns, wait_ns);
}

void add_bytes(Frame* frame, const ProxyOp& op, uint64_t bytes) {
  add_shared(op.direction == kSend ? frame->send_bytes : frame->recv_bytes, bytes);
  if (op.edge >= 0) add_shared(op.comm->edges[op.edge].bytes, bytes);
}

void send_state(Frame* frame, const ProxyOp& op, ProxyStep* step, int state, uint64_t bytes, uint64_t now_ns) {
  if (state == state::kSendPeerWait || state == state::kSendWait) {
    if (step->ready_ns == 0) step->ready_ns = now_ns;  // the data is there: only the peer and the network are left
  }
  if (state != state::kSendWait || step->posted) return;
  step->posted = true;
  add_shared(frame->send_posted, 1);
  add_bytes(frame, op, bytes);
}

void receive_state(Frame* frame, ProxyOp* op, ProxyStep* step, int state, uint64_t bytes, uint64_t now_ns) {
  if (state == state::kRecvWait && !step->posted) {
    step->posted = true;
    step->ready_ns = now_ns;
    add_shared(frame->recv_posted, 1);
  }
  if (state != state::kRecvFlushWait || step->arrived) return;
  step->arrived = true;
  add_bytes(frame, *op, bytes);
  add_wait(frame, op, *step, now_ns);
}

ProxyOp* op_of(ProxyStep* step) {
  return reinterpret_cast<ProxyOp*>(reinterpret_cast<char*>(step - step->place) - offsetof(ProxyOp, steps));
}

}  // namespace

void* start_kernel(const Descriptor& descriptor, uint64_t now_ns) {
  Event* task = handle_of<Event>(descriptor.parent, Kind::kTask);
  if (task == nullptr || !try_hold(task)) return nullptr;
  Event* kernel = take_event(Kind::kKernel, task->comm);
  if (kernel == nullptr) {
    release(task);
    count(Counter::kDropped);
    return nullptr;
  }
  kernel->parent = task;
  kernel->channel = descriptor.kernel.channel;
  if (Frame* frame = frame_of(task->comm)) {
    add_shared(frame->kernels_started, 1);
    put(frame->channel[kernel->channel % PACELINE_CHANNELS_MAX].kernel_state, kKernelRuns);
    Event* operation = operation_of(task);
    if (!operation->operation.kernel_seen.exchange(true, std::memory_order_relaxed)) {
      paceline_kernel_started_v1(live_page(), operation->operation.ticket, now_ns);
    }
  }
  kernel->chained = chain_start(task->comm, descriptor, event::kKernelCh, task->chained, nullptr);
  return kernel;
}

void stop_kernel(Event* kernel, uint64_t now_ns) {
  if (!mark(kernel, kOver)) return;  // its state said so before
  Event* task = kernel->parent;
  if (Frame* frame = frame_of(kernel->comm)) {
    add_shared(frame->kernels_done, 1);
    put(frame->channel[kernel->channel % PACELINE_CHANNELS_MAX].kernel_state, 0);
    put(frame->last_kernel_ns, now_ns);
    put(frame->progress_ns, now_ns);
  }
  kernel_stopped(operation_of(task), now_ns);
}

void* start_proxy_op(Comm* comm, const Descriptor& descriptor, uint64_t) {
  static const int32_t own_pid = static_cast<int32_t>(getpid());
  if (descriptor.proxy_op.pid != own_pid) {  // PXN: context and parent are addresses of another process
    count(Counter::kForeign);
    return nullptr;
  }
  if (comm == nullptr || (comm->slot < 0 && !comm->chained)) return nullptr;
  ProxyOp* op = take_proxy_op(comm);
  if (op == nullptr) {
    count(Counter::kDropped);
    return nullptr;
  }
  Event* task = handle_of<Event>(descriptor.parent, Kind::kTask);
  if (task != nullptr && !try_hold(task)) task = nullptr;
  op->parent = task;
  op->channel = descriptor.proxy_op.channel;
  op->direction = descriptor.proxy_op.is_send != 0 ? kSend : kReceive;
  op->filled = descriptor.proxy_op.steps / 2;
  if (Frame* frame = frame_of(comm)) {
    add_shared(frame->proxies_open, 1);
    if (!comm->proxied.exchange(true, std::memory_order_relaxed)) note_proxied(comm);
    int32_t peer = descriptor.proxy_op.peer;
    if (peer >= 0 && static_cast<uint32_t>(peer) < comm->nranks) {
      op->edge = paceline_edge_row_v1(live_page(), comm->slot, peer, op->direction, edge_group(task, op->channel));
    }
  }
  op->chained = chain_start(comm, descriptor, event::kProxyOp, task != nullptr ? task->chained : nullptr, nullptr);
  return op;
}

void stop_proxy_op(ProxyOp* op, uint64_t) {
  if (!op->open.exchange(false, std::memory_order_acq_rel)) return;  // stopped twice: once is enough
  chain_stop(op->chained);
  if (Frame* frame = frame_of(op->comm)) {
    add_shared(frame->proxies_open, -1);
    put_state(frame, *op, PACELINE_TRANSFER_STATE_IDLE);
  }
  give_proxy_op(op);
}

void* start_proxy_step(const Descriptor& descriptor, uint64_t) {
  ProxyOp* op = handle_of<ProxyOp>(descriptor.parent, Kind::kProxyOp);
  if (op == nullptr || !op->open.load(std::memory_order_relaxed)) return nullptr;
  int32_t number = descriptor.proxy_step.step;
  ProxyStep& step = op->steps[static_cast<uint32_t>(number) % kStepsInFlight];
  if (!step.open || step.step != number) {  // a receive is started again and again until it can be posted
    uint8_t place = step.place;
    step = ProxyStep{};
    step.kind = Kind::kProxyStep;
    step.place = place;
    step.step = number;
    step.open = true;
  }
  step.chained = chain_start(op->comm, descriptor, event::kProxyStep, op->chained, nullptr);
  return &step;
}

void record_step(ProxyStep* step, int state, const StateArguments* arguments, uint64_t now_ns) {
  ProxyOp* op = op_of(step);
  Frame* frame = frame_of(op->comm);
  if (frame == nullptr || state < state::kSendGpuWait || state > state::kSendPeerWait) return;
  step->state = static_cast<uint8_t>(state);
  if (step->step == op->oldest) put_state(frame, *op, step->state);
  uint64_t bytes = arguments != nullptr ? arguments->bytes : 0;
  if (op->direction == kSend) send_state(frame, *op, step, state, bytes, now_ns);
  else receive_state(frame, op, step, state, bytes, now_ns);
}

void stop_proxy_step(ProxyStep* step, uint64_t now_ns) {
  chain_stop(step->chained);
  step->chained = nullptr;
  if (!step->open) return;
  step->open = false;
  ProxyOp* op = op_of(step);
  if (step->step >= op->oldest) op->oldest = step->step + 1;
  Frame* frame = frame_of(op->comm);
  if (frame == nullptr) return;
  bool send = op->direction == kSend;
  if (send) add_wait(frame, op, *step, now_ns);
  add_shared(send ? frame->send_count : frame->recv_count, 1);
  paceline_channel_v1& channel = frame->channel[op->channel % PACELINE_CHANNELS_MAX];
  add_shared(send ? channel.sends : channel.recvs, 1);
  if (op->edge >= 0) add_shared(op->comm->edges[op->edge].count, 1);
  put(frame->progress_ns, now_ns);
  const ProxyStep& next = op->steps[static_cast<uint32_t>(op->oldest) % kStepsInFlight];
  bool started = next.open && next.step == op->oldest && next.state != 0;
  put_state(frame, *op, started ? next.state : PACELINE_TRANSFER_STATE_MOVING + 0u);
}

}  // namespace paceline::nccl
