// Counts and waits inside an operation, for sources that see them: slice by slice.
#include "page.h"

namespace paceline {
namespace {

bool is_plausible(const paceline_advance_v1& advance) {
  return advance.direction <= kReceive && advance.group <= 2 && advance.channel < PACELINE_CHANNELS_MAX &&
         advance.peer_slot < kPeerSlots && advance.peer >= 0;
}

void advance_channel(Frame& frame, const paceline_advance_v1& advance) {
  paceline_channel_v1& channel = frame.channel[advance.channel];
  bool send = advance.direction == kSend;
  add(send ? channel.sends : channel.recvs, advance.count);
  put(send ? channel.send_state : channel.recv_state, advance.state);
}

void advance_frame(Frame& frame, const paceline_advance_v1& advance) {
  bool send = advance.direction == kSend;
  add(send ? frame.send_posted : frame.recv_posted, advance.posted);
  add(send ? frame.send_count : frame.recv_count, advance.count);
  add(send ? frame.send_bytes : frame.recv_bytes, advance.bytes);
  add((send ? frame.send_wait_ns : frame.recv_wait_ns)[advance.peer_slot], advance.wait_ns);
}

}  // namespace

Edge* find_edge(paceline_page_v1* page, uint32_t slot, int32_t peer, uint16_t direction, uint16_t group) {
  Edge* edges = page->edges(slot);
  for (uint32_t i = 0; i < PACELINE_EDGES_MAX; i++) {
    Edge& edge = edges[i];
    int32_t owner = get(edge.peer);
    if (owner < 0) {  // rows are used in order: all behind it are free
      put(edge.group, group);
      put(edge.direction, direction);
      put(edge.peer, peer);
      return &edge;
    }
    if (owner == peer && get(edge.group) == group && get(edge.direction) == direction) return &edge;
  }
  return nullptr;
}

Traffic traffic_of(const Frame& frame) {
  Traffic traffic{get(frame.send_count), get(frame.recv_count), 0, 0};
  for (uint32_t i = 0; i < kPeerSlots; i++) {
    traffic.send_wait_ns += get(frame.send_wait_ns[i]);
    traffic.recv_wait_ns += get(frame.recv_wait_ns[i]);
  }
  return traffic;
}

}  // namespace paceline

using namespace paceline;

extern "C" {

void paceline_progress_v1(paceline_page_v1* page, int slot, const paceline_advance_v1* advance) {
  if (!page->usable()) return;
  Communicator* communicator = find_communicator(page, slot);
  if (communicator == nullptr) return;
  if (!is_plausible(*advance)) return count_error(page);
  uint64_t now_ns = advance->count != 0 ? monotonic_ns() : 0;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  if (!communicator->open) return count_error(page);
  Frame& frame = page->frame(communicator->slot);
  SequenceWrite write(frame.lock);
  advance_frame(frame, *advance);
  advance_channel(frame, *advance);
  if (now_ns != 0) put(frame.progress_ns, now_ns);
  Edge* edge = find_edge(page, communicator->slot, advance->peer, advance->direction, advance->group);
  if (edge == nullptr) return count_error(page);
  add(edge->count, advance->count);
  add(edge->bytes, advance->bytes);
  add(edge->wait_ns, advance->wait_ns + advance->early_wait_ns);
}

void paceline_describe_v1(paceline_page_v1* page, int64_t ticket, uint8_t algorithm, uint8_t protocol,
                          uint8_t channels) {
  if (!page->usable() || ticket < 0) return;
  Communicator* communicator = find_communicator(page, ticket_slot(ticket));
  if (communicator == nullptr) return;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  Node* node = open_node(communicator, ticket);
  if (node == nullptr) return;  // only counted, or over: there is no entry to describe
  Frame& frame = page->frame(communicator->slot);
  SequenceWrite write(frame.lock);
  node->entry.algorithm = algorithm;
  node->entry.protocol = protocol;
  if (node->ring != kNone) {
    Round& entry = page->rounds(communicator->slot)[node->ring];
    put(entry.algorithm, algorithm);
    put(entry.protocol, protocol);
  }
  if (get(frame.issue) != node->entry.issue) return;
  put(frame.algorithm, algorithm);
  put(frame.protocol, protocol);
  put(frame.channels, channels);
}

}  // extern "C"
