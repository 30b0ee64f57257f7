// Point-to-point: one row per peer, numbered per (peer, direction) so that both ends agree.
#include "page.h"

namespace paceline {
namespace {

constexpr uint32_t kTableMask = 4 * PACELINE_PEERS_MAX - 1;

uint32_t row_of(uint16_t list) { return (list - 1u) / 2; }
uint32_t direction_of(uint16_t list) { return (list - 1u) % 2; }

}  // namespace

uint16_t find_peer_row(paceline_page_v1* page, Communicator* communicator, int32_t peer) {
  auto place = static_cast<uint32_t>(paceline_mix64_v1(static_cast<uint32_t>(peer))) & kTableMask;
  while (uint16_t entry = communicator->peer_table[place]) {  // at most a quarter full: ends
    if (communicator->peers[entry - 1] == peer) return static_cast<uint16_t>(entry - 1);
    place = (place + 1) & kTableMask;
  }
  if (communicator->peer_count == PACELINE_PEERS_MAX) return kNone;
  auto row = static_cast<uint16_t>(communicator->peer_count++);
  communicator->peers[row] = peer;
  communicator->peer_table[place] = static_cast<uint16_t>(row + 1);
  put(page->peers(communicator->slot)[row].peer, peer);
  return row;
}

void post_pair(paceline_page_v1* page, Communicator* communicator, Node* node, uint16_t row,
               uint32_t direction) {
  Peer& peer = page->peers(communicator->slot)[row];
  add(peer.posted[direction], 1);
  node->pair_seq = get(peer.posted[direction]);
  node->entry.pair_seq = static_cast<uint32_t>(node->pair_seq);
}

uint64_t complete_pair(paceline_page_v1* page, Communicator* communicator, const Node& node, bool failed) {
  uint32_t row = row_of(node.list), direction = direction_of(node.list);
  Peer& peer = page->peers(communicator->slot)[row];
  uint64_t& previous_ns = communicator->pair_completed_ns[row][direction];
  uint64_t started_ns = node.entry.entered_ns > previous_ns ? node.entry.entered_ns : previous_ns;
  uint64_t completed_ns = node.entry.completed_ns;
  if (completed_ns > previous_ns) previous_ns = completed_ns;
  add(peer.completed[direction], 1);
  if (!failed) {
    if (completed_ns > started_ns) add(peer.total_ns[direction], completed_ns - started_ns);
    put(peer.progress_ns, completed_ns);
  }
  return started_ns;
}

uint64_t pair_total_ns(paceline_page_v1* page, Communicator* communicator, const Node& node) {
  return get(page->peers(communicator->slot)[row_of(node.list)].total_ns[direction_of(node.list)]);
}

void show_pair_head(paceline_page_v1* page, Communicator* communicator, uint16_t list) {
  Peer& peer = page->peers(communicator->slot)[row_of(list)];
  uint32_t direction = direction_of(list);
  uint16_t head = communicator->lists[list].head;
  const Node* node = head == kNone ? nullptr : &communicator->nodes[head];
  put(peer.head_seq[direction], node ? node->pair_seq : 0);
  put(peer.head_entered_ns[direction], node ? node->entry.entered_ns : 0);
  put(peer.head_signature[direction], node ? node->entry.signature : 0);
  put(peer.head_issue[direction], node ? node->entry.issue : 0);
}

}  // namespace paceline
