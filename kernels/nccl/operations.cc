// The list is in order of entry, so groups of calls are, too. NCCL carries out the groups of one communicator one
// after another: the end of an operation is the end of all groups before it. Where no kernel events come, an
// operation stays open until the communicator's next group is called, and the frame says that completion cannot be
// observed: it is the newest call, and nobody knows more (docs/adr/0032-nccl-rounds.md). A communicator without a frame
// keeps the list for a second profiler: NCCL names the handles of tasks until their kernels have stopped.
#include "operations.h"

#include "groups.h"
#include "names.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

constexpr uint32_t kOpenMax = 4096;  // of one communicator; beyond it operations are only counted

void append(Comm* comm, Event* operation) {
  operation->operation.previous = comm->last;
  operation->operation.next = nullptr;
  (comm->last != nullptr ? comm->last->operation.next : comm->first) = operation;
  comm->last = operation;
  comm->open_count++;
}

void unlink(Comm* comm, Event* operation) {
  Event *previous = operation->operation.previous, *next = operation->operation.next;
  (previous != nullptr ? previous->operation.next : comm->first) = next;
  (next != nullptr ? next->operation.previous : comm->last) = previous;
  comm->open_count--;
}

bool kernels_over(const OperationPart& part) {
  uint32_t expected = part.expected.load(std::memory_order_acquire);
  return expected > 0 && part.stopped.load(std::memory_order_acquire) >= expected;
}

void complete(Comm* comm, Event* operation, bool failed, uint64_t now_ns) {
  unlink(comm, operation);
  unmark(operation, kListed);
  paceline_page_v1* page = live_page();
  if (page != nullptr) paceline_complete_at_v1(page, operation->operation.ticket, failed, now_ns);
  comm->ended_unseen = !has(operation, kTracked | kMarked);
  Event* task = operation->operation.tasks;
  operation->operation.tasks = nullptr;
  while (task != nullptr) {
    Event* next = task->next_task;
    release(task);
    task = next;
  }
  release(operation);
}

bool is_over(const Comm* comm, Event* operation) {
  if (!has(operation, kReturned)) return false;
  if (has(operation, kTracked)) return kernels_over(operation->operation);
  if (has(operation, kMarked)) return round_left(comm) >= operation->operation.round;
  return comm->last->group != operation->group;
}

// Completes what is over. Only the oldest group can be: the others come behind it.
void settle(Comm* comm, uint64_t now_ns) {
  bool moved = true;
  while (moved && comm->first != nullptr) {
    moved = false;
    uint64_t group = comm->first->group;
    for (Event* at = comm->first; at != nullptr && at->group == group;) {
      Event* next = at->operation.next;
      if (is_over(comm, at)) {
        complete(comm, at, false, now_ns);
        moved = true;
      }
      at = next;
    }
  }
}

// An end that was seen is the end of all groups before it, whatever was seen of them.
void end_groups_before(Comm* comm, Event* operation, uint64_t now_ns) {
  if (!has(operation, kTracked) || !is_over(comm, operation)) return;
  while (comm->first != nullptr && comm->first->group < operation->group) complete(comm, comm->first, false, now_ns);
}

// By the oldest open operation, once it is launched; until then by what was before it.
void show_completion(Comm* comm) {
  bool unseen = (comm->flags & PACELINE_FRAME_FLAG_COMPLETION_UNOBSERVABLE) != 0;
  if (comm->first == nullptr) unseen = comm->ended_unseen;
  else if (has(comm->first, kReturned)) unseen = !has(comm->first, kTracked | kMarked);
  uint32_t others = comm->flags & ~static_cast<uint32_t>(PACELINE_FRAME_FLAG_COMPLETION_UNOBSERVABLE);
  show_flags(comm, others | (unseen ? PACELINE_FRAME_FLAG_COMPLETION_UNOBSERVABLE + 0u : 0u));
}

void show_counts(Comm* comm) {
  bool seen = comm->counts_exact && comm->proxied.load(std::memory_order_relaxed);
  uint32_t others = comm->flags & ~static_cast<uint32_t>(PACELINE_FRAME_FLAG_COUNTS_UNOBSERVABLE);
  show_flags(comm, others | (seen ? 0u : PACELINE_FRAME_FLAG_COUNTS_UNOBSERVABLE + 0u));
}

// Its ticket.
int64_t write_entry(paceline_page_v1* page, Comm* comm, const paceline_operation_v1& what, uint32_t events,
                    uint64_t now_ns) {
  bool first = get(comm->frame->started) == 0 && get(comm->frame->p2p_started) == 0;
  // Counts are compared between ranks from the first operation on: a gap makes them worthless for good.
  bool asked = (events & events_asked() & event::kProxyStep) != 0;
  comm->counts_exact = asked && (first || comm->counts_exact);
  show_counts(comm);
  return paceline_enter_at_v1(page, comm->slot, &what, now_ns);
}

}  // namespace

paceline_operation_v1 describe(uint8_t function, uint8_t dtype, uint64_t count, int32_t peer) {
  paceline_operation_v1 what{};
  what.function = function;
  what.dtype = dtype;
  what.count = count;
  what.bytes = count * dtype_bytes(dtype);
  what.signature_count = counts_agree(function) ? count : 0;
  what.peer = peer;
  return what;
}

int32_t root_of(uint8_t function, int32_t root, const Comm* comm) {
  return has_root(function) && root >= 0 && static_cast<uint32_t>(root) < comm->nranks ? root : -1;
}

void enter(Event* operation, const paceline_operation_v1& what, uint32_t events, uint64_t now_ns) {
  Comm* comm = operation->comm;
  if (is_idle(comm)) return;
  paceline_page_v1* page = comm->slot >= 0 ? live_page() : nullptr;
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (!comm->live.load(std::memory_order_relaxed)) return count(Counter::kLate);
  if (has(operation, kListed)) return;  // without a page there is no ticket that would say so
  OperationPart& part = operation->operation;
  if (page != nullptr) part.ticket = write_entry(page, comm, what, events, now_ns);
  if (comm->open_count >= kOpenMax) {
    if (page != nullptr) paceline_complete_at_v1(page, part.ticket, 0, now_ns);
    part.ticket = -1;
    return count(Counter::kDropped);
  }
  hold(operation);
  mark(operation, kListed);
  append(comm, operation);
  settle(comm, now_ns);
}

void enter_without_handle(Comm* comm, const paceline_operation_v1& what, uint64_t now_ns) {
  paceline_page_v1* page = live_page();
  if (page == nullptr || comm->slot < 0) return;
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (!comm->live.load(std::memory_order_relaxed)) return count(Counter::kLate);
  comm->counts_exact = false;
  comm->ended_unseen = true;
  paceline_complete_at_v1(page, paceline_enter_at_v1(page, comm->slot, &what, now_ns), 0, now_ns);
  show_counts(comm);
  show_completion(comm);
}

void returned(Event* operation, bool kernels, uint64_t now_ns) {
  Comm* comm = operation->comm;
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (!has(operation, kListed)) return;
  bool tracked = kernels && operation->operation.expected.load(std::memory_order_acquire) > 0;
  if (tracked) mark(operation, kTracked);
  mark(operation, kReturned);
  paceline_page_v1* page = live_page();
  if (page != nullptr) paceline_returned_at_v1(page, operation->operation.ticket, now_ns);
  end_groups_before(comm, operation, now_ns);
  settle(comm, now_ns);
  show_completion(comm);
}

void kernel_stopped(Event* operation, uint64_t now_ns) {
  Comm* comm = operation->comm;
  OperationPart& part = operation->operation;
  part.stopped.fetch_add(1, std::memory_order_acq_rel);
  if (!kernels_over(part)) return;
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (!has(operation, kListed) || !has(operation, kTracked)) return;
  end_groups_before(comm, operation, now_ns);
  settle(comm, now_ns);
  show_completion(comm);
}

void set_marked(Event* operation, uint64_t round) {
  std::lock_guard<std::mutex> guard(operation->comm->mutex);
  operation->operation.round = round;
  mark(operation, kMarked);
}

void forget_marks(Comm* comm) {
  std::lock_guard<std::mutex> guard(comm->mutex);
  for (Event* at = comm->first; at != nullptr; at = at->operation.next) unmark(at, kMarked);
  comm->ended_unseen = true;
  show_completion(comm);
}

void note_proxied(Comm* comm) {
  std::lock_guard<std::mutex> guard(comm->mutex);
  if (comm->live.load(std::memory_order_relaxed)) show_counts(comm);  // else its slot may be another's
}

void fail(Event* operation, uint64_t now_ns) {
  std::lock_guard<std::mutex> guard(operation->comm->mutex);
  if (has(operation, kListed)) complete(operation->comm, operation, true, now_ns);
}

void abandon_operations(Comm* comm) {
  std::lock_guard<std::mutex> guard(comm->mutex);
  uint64_t now_ns = to_monotonic_ns(ticks());
  while (comm->first != nullptr) {
    bool launched = has(comm->first, kReturned), tracked = has(comm->first, kTracked);
    bool failed = !launched || (tracked && !kernels_over(comm->first->operation));
    failed |= !tracked && has(comm->first, kMarked) && !is_over(comm, comm->first);
    complete(comm, comm->first, failed, now_ns);
  }
}

void add_task(Event* operation, Event* task, uint8_t channels, bool kernels) {
  task->parent = operation;
  task->group = operation->group;
  hold(operation);
  if (!kernels || channels == 0 || channels > PACELINE_CHANNELS_MAX) return;
  std::lock_guard<std::mutex> guard(operation->comm->mutex);
  bool captured = has(operation, kCaptured);
  if (!captured && !has(operation, kListed)) return;
  operation->operation.expected.fetch_add(channels, std::memory_order_acq_rel);
  if (captured && operation->operation.tasks != nullptr) {  // of the replay before
    release(operation->operation.tasks);
    operation->operation.tasks = nullptr;
  }
  hold(task);  // NCCL will name it as a parent until its kernels have stopped
  task->next_task = operation->operation.tasks;
  operation->operation.tasks = task;
}

}  // namespace paceline::nccl
