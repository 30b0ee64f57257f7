// The hot path: entered, returned, completed.
#include "page.h"

namespace paceline {
namespace {

constexpr uint64_t kGenerationMask = (uint64_t{1} << 46) - 1;

// bits 0-5 slot, 6-15 node, 16-61 generation of the node: always positive, never -1
int64_t make_ticket(uint32_t slot, uint32_t node, uint64_t generation) {
  return static_cast<int64_t>(slot | node << 6 | (generation & kGenerationMask) << 16);
}

uint32_t ticket_node(int64_t ticket) { return static_cast<uint32_t>(ticket >> 6) & 0x3ffu; }
uint64_t ticket_generation(int64_t ticket) { return static_cast<uint64_t>(ticket) >> 16; }

bool is_pair(uint8_t function) {
  return function >= PACELINE_FUNCTION_SEND && function <= PACELINE_FUNCTION_RECV_ANY;
}

void show_head(paceline_page_v1* page, Communicator* communicator) {
  Frame& frame = page->frame(communicator->slot);
  uint16_t head = communicator->lists[0].head;
  Node* node = head == kNone ? nullptr : &communicator->nodes[head];
  if (node != nullptr) node->before = traffic_of(frame);  // what waited behind others starts now
  put(frame.head_round, node ? node->entry.round : 0);
  put(frame.head_signature, node ? node->entry.signature : 0);
  put(frame.head_entered_ns, node ? node->entry.entered_ns : 0);
}

void show_newest(Frame& frame, const Round& entry, uint64_t bytes) {
  put(frame.tid, thread_id());
  put(frame.function, entry.function);
  put(frame.dtype, entry.dtype);
  put(frame.reduce_op, entry.reduce_op);
  put(frame.state, entry.state);
  put(frame.kind, entry.kind);
  put(frame.peer, entry.peer);
  put(frame.count, entry.count);
  put(frame.bytes, bytes);
  put(frame.signature, entry.signature);
  put(frame.issue, entry.issue);
  put(frame.entered_ns, entry.entered_ns);
  put(frame.returned_ns, 0);
  put(frame.enqueued_ns, 0);
  put(frame.first_kernel_ns, 0);
  add(frame.open_ops, 1);
}

void count_entered(paceline_page_v1* page, Communicator* communicator, Round* entry, uint8_t function) {
  Frame& frame = page->frame(communicator->slot);
  entry->issue = add_shared(page->process().issued, 1);
  if (is_pair(function)) {
    entry->kind = PACELINE_OP_KIND_POINT_TO_POINT;
    add(frame.p2p_started, 1);
    // Proxy threads add to these without the lock.
    add_shared(function == PACELINE_FUNCTION_SEND ? frame.send_posted : frame.recv_posted, 1);
  } else {
    entry->kind = PACELINE_OP_KIND_COLLECTIVE;
    add(frame.started, 1);
    add(frame.round, 1);
    entry->round = get(frame.round);
  }
}

// Only counted: more operations in flight than there are nodes. Rounds still advance.
int64_t enter_untracked(paceline_page_v1* page, Communicator* communicator, Round* entry) {
  bool pair = entry->kind == PACELINE_OP_KIND_POINT_TO_POINT;
  communicator->untracked[pair]++;
  if (!pair) {
    uint8_t places[kKeptLevelCount];
    place_kept(communicator, entry->round, places);
  }
  count_dropped(page, communicator);
  uint64_t generation = uint64_t{communicator->incarnation} << 1 | (pair ? 1u : 0u);
  return make_ticket(communicator->slot, kUnrecorded, generation);
}

bool complete_untracked(paceline_page_v1* page, Communicator* communicator, int64_t ticket, uint64_t now_ns,
                        bool failed) {
  uint64_t generation = ticket_generation(ticket);
  bool pair = generation & 1u;
  if (ticket_node(ticket) != kUnrecorded || generation >> 1 != communicator->incarnation) return false;
  if (communicator->untracked[pair] == 0) return false;
  communicator->untracked[pair]--;
  Frame& frame = page->frame(communicator->slot);
  SequenceWrite write(frame.lock);
  add(frame.open_ops, -1);
  if (!failed) put(frame.progress_ns, now_ns);
  if (!pair) {
    add(frame.enqueued, 1);
    add(frame.completed, 1);
    if (now_ns > communicator->completed_ns) communicator->completed_ns = now_ns;
  }
  return true;
}

void track(paceline_page_v1* page, Communicator* communicator, uint16_t index, const Round& entry,
           uint64_t bytes) {
  Node& node = communicator->nodes[index];
  node.entry = entry;
  node.bytes = bytes;
  node.step = static_cast<uint32_t>(get(page->process().step));
  node.before = traffic_of(page->frame(communicator->slot));
  node.list = kNone;
  node.returned = false;
  node.kernel_ns = 0;
  bool placed = true;
  for (uint8_t& place : node.kept) place = 0xff;
  if (entry.kind == PACELINE_OP_KIND_COLLECTIVE) {
    place_kept(communicator, entry.round, node.kept);
    append_node(communicator, index, 0);
    if (communicator->lists[0].head == index) show_head(page, communicator);
  } else {
    uint32_t direction = entry.function == PACELINE_FUNCTION_SEND ? kSend : kReceive;
    uint16_t row = find_peer_row(page, communicator, entry.peer);
    placed = row != kNone;
    if (placed) {
      post_pair(page, communicator, &node, row, direction);
      auto list = static_cast<uint16_t>(1 + 2 * row + direction);
      append_node(communicator, index, list);
      if (communicator->lists[list].head == index) show_pair_head(page, communicator, list);
    }
  }
  bool recorded = record_entered(page, communicator, &node);
  if (!placed || !recorded) count_dropped(page, communicator);
}

// T = completed - max(entered, previous completion, first kernel); a failed operation has no T.
RoundTimes times_of(paceline_page_v1* page, Communicator* communicator, const Node& node, bool failed) {
  RoundTimes times{};
  times.bytes = node.bytes;
  times.step = node.step;
  const Round& entry = node.entry;
  if (entry.kind == PACELINE_OP_KIND_COLLECTIVE) {
    Traffic now = traffic_of(page->frame(communicator->slot));
    times.send_count = node.before.send_count;
    times.recv_count = node.before.recv_count;
    times.send_wait_ns = now.send_wait_ns - node.before.send_wait_ns;
    times.recv_wait_ns = now.recv_wait_ns - node.before.recv_wait_ns;
    uint64_t previous_ns = communicator->completed_ns;
    times.started_ns = entry.entered_ns > previous_ns ? entry.entered_ns : previous_ns;
    if (node.kernel_ns > times.started_ns) times.started_ns = node.kernel_ns;
    if (entry.completed_ns < times.started_ns) times.started_ns = entry.completed_ns;
    if (!failed) communicator->total_ns += entry.completed_ns - times.started_ns;
    if (entry.completed_ns > previous_ns) communicator->completed_ns = entry.completed_ns;
    times.total_ns = communicator->total_ns;
  } else if (node.list != kNone) {
    times.started_ns = complete_pair(page, communicator, node, failed);
    if (entry.completed_ns < times.started_ns) times.started_ns = entry.completed_ns;
    times.total_ns = pair_total_ns(page, communicator, node);
  } else {
    times.started_ns = entry.entered_ns;
  }
  return times;
}

void complete_tracked(paceline_page_v1* page, Communicator* communicator, Node* node, uint64_t now_ns,
                      bool failed) {
  Frame& frame = page->frame(communicator->slot);
  SequenceWrite write(frame.lock);
  Round& entry = node->entry;
  entry.completed_ns = now_ns > entry.entered_ns ? now_ns : entry.entered_ns;
  entry.state = failed ? PACELINE_OP_STATE_FAILED : PACELINE_OP_STATE_COMPLETED;
  RoundTimes times = times_of(page, communicator, *node, failed);
  record_completed(page, communicator, *node, times);
  if (entry.kind == PACELINE_OP_KIND_COLLECTIVE) {
    if (!node->returned) add(frame.enqueued, 1);
    add(frame.completed, 1);
  }
  add(frame.open_ops, -1);
  if (get(frame.issue) == entry.issue) put(frame.state, entry.state);
  if (!failed) put(frame.progress_ns, entry.completed_ns);
  auto index = static_cast<uint16_t>(node - communicator->nodes);
  bool was_head = remove_node(communicator, index);
  if (was_head && node->list == 0) show_head(page, communicator);
  if (was_head && node->list != 0) show_pair_head(page, communicator, node->list);
  give_node(communicator, index);
}

}  // namespace

uint32_t ticket_slot(int64_t ticket) { return static_cast<uint32_t>(ticket) & 63u; }

Node* open_node(Communicator* communicator, int64_t ticket) {
  uint32_t index = ticket_node(ticket);
  if (index >= PACELINE_OPEN_OPS_MAX) return nullptr;
  Node& node = communicator->nodes[index];
  bool same = (node.generation & kGenerationMask) == ticket_generation(ticket);
  return node.open && same ? &node : nullptr;
}

}  // namespace paceline

using namespace paceline;

extern "C" {

uint64_t paceline_signature_v1(const paceline_operation_v1* operation) {
  // Both ends of a message must agree: they see each other as peers and call different functions.
  bool pair = is_pair(operation->function);
  uint64_t function = pair ? PACELINE_FUNCTION_SEND + 0u : operation->function;
  uint64_t reduce_op = pair ? 0 : operation->reduce_op;
  auto peer = static_cast<uint32_t>(pair ? -1 : operation->peer);
  uint64_t what = function | uint64_t{operation->dtype} << 8 | reduce_op << 16 | uint64_t{peer} << 32;
  uint64_t mixed = paceline_mix64_v1(paceline_mix64_v1(what) ^ operation->signature_count);
  return mixed == 0 ? 1 : mixed;
}

int64_t paceline_enter_at_v1(paceline_page_v1* page, int slot, const paceline_operation_v1* operation,
                             uint64_t now_ns) {
  if (!page->usable()) return -1;
  Communicator* communicator = find_communicator(page, slot);
  if (communicator == nullptr) return -1;
  Round entry{};
  entry.entered_ns = now_ns;
  entry.signature = paceline_signature_v1(operation);
  entry.count = operation->count;
  entry.function = operation->function;
  entry.dtype = operation->dtype;
  entry.reduce_op = operation->reduce_op;
  entry.peer = operation->peer;
  entry.state = PACELINE_OP_STATE_ENTERED;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  if (!communicator->open) {
    count_error(page);
    return -1;
  }
  Frame& frame = page->frame(communicator->slot);
  SequenceWrite write(frame.lock);
  count_entered(page, communicator, &entry, operation->function);
  show_newest(frame, entry, operation->bytes);
  uint16_t index = take_node(communicator);
  if (index == kNone) return enter_untracked(page, communicator, &entry);
  track(page, communicator, index, entry, operation->bytes);
  return make_ticket(communicator->slot, index, communicator->nodes[index].generation);
}

int64_t paceline_enter_v1(paceline_page_v1* page, int slot, const paceline_operation_v1* operation) {
  return paceline_enter_at_v1(page, slot, operation, monotonic_ns());
}

void paceline_returned_at_v1(paceline_page_v1* page, int64_t ticket, uint64_t now_ns) {
  if (!page->usable() || ticket < 0) return;
  Communicator* communicator = find_communicator(page, ticket_slot(ticket));
  if (communicator == nullptr) return;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  Node* node = open_node(communicator, ticket);
  if (node == nullptr || node->returned) return;  // completed before its call returned: nothing to add
  Frame& frame = page->frame(communicator->slot);
  SequenceWrite write(frame.lock);
  node->returned = true;
  node->entry.state = PACELINE_OP_STATE_STARTED;
  if (node->entry.kind == PACELINE_OP_KIND_COLLECTIVE) add(frame.enqueued, 1);
  if (node->ring != kNone) put(page->rounds(communicator->slot)[node->ring].state, node->entry.state);
  if (get(frame.issue) != node->entry.issue) return;
  put(frame.returned_ns, now_ns);
  if (get(frame.enqueued_ns) == 0) put(frame.enqueued_ns, now_ns);
  put(frame.state, node->entry.state);
}

void paceline_returned_v1(paceline_page_v1* page, int64_t ticket) {
  paceline_returned_at_v1(page, ticket, monotonic_ns());
}

void paceline_complete_at_v1(paceline_page_v1* page, int64_t ticket, int failed, uint64_t now_ns) {
  if (!page->usable() || ticket < 0) return;
  Communicator* communicator = find_communicator(page, ticket_slot(ticket));
  if (communicator == nullptr) return;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  Node* node = open_node(communicator, ticket);
  if (node != nullptr) {
    complete_tracked(page, communicator, node, now_ns, failed != 0);
  } else if (!complete_untracked(page, communicator, ticket, now_ns, failed != 0)) {
    count_error(page);
  }
}

void paceline_complete_v1(paceline_page_v1* page, int64_t ticket, int failed) {
  paceline_complete_at_v1(page, ticket, failed, monotonic_ns());
}

}  // extern "C"
