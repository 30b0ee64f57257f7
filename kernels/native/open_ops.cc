// Operations in flight: a pool of nodes and doubly linked lists in order of entry, so that the head
// of line of any list is known in constant time whatever order operations complete in.
#include "page.h"

namespace paceline {

void reset_nodes(Communicator* communicator) {
  for (uint32_t i = 0; i < PACELINE_OPEN_OPS_MAX; i++) {
    Node& node = communicator->nodes[i];
    node.open = false;
    node.next = i + 1 < PACELINE_OPEN_OPS_MAX ? static_cast<uint16_t>(i + 1) : kNone;
  }
  communicator->free_node = 0;
  for (List& list : communicator->lists) list = List{kNone, kNone};
}

uint16_t take_node(Communicator* communicator) {
  uint16_t index = communicator->free_node;
  if (index == kNone) return kNone;
  Node& node = communicator->nodes[index];
  communicator->free_node = node.next;
  node.generation++;
  node.open = true;
  return index;
}

void give_node(Communicator* communicator, uint16_t index) {
  Node& node = communicator->nodes[index];
  node.open = false;
  node.next = communicator->free_node;
  communicator->free_node = index;
}

void append_node(Communicator* communicator, uint16_t index, uint16_t list) {
  Node& node = communicator->nodes[index];
  List& target = communicator->lists[list];
  node.list = list;
  node.next = kNone;
  node.previous = target.tail;
  if (target.tail == kNone) {
    target.head = index;
  } else {
    communicator->nodes[target.tail].next = index;
  }
  target.tail = index;
}

bool remove_node(Communicator* communicator, uint16_t index) {
  Node& node = communicator->nodes[index];
  if (node.list == kNone) return false;
  List& list = communicator->lists[node.list];
  bool was_head = list.head == index;
  if (node.previous != kNone) communicator->nodes[node.previous].next = node.next;
  if (node.next != kNone) communicator->nodes[node.next].previous = node.previous;
  if (was_head) list.head = node.next;
  if (list.tail == index) list.tail = node.previous;
  return was_head;
}

}  // namespace paceline
