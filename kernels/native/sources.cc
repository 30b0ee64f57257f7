// For writers that see inside NCCL: flags that come and go, kernels, edges, and a page shared by two writers.
#include "page.h"

using namespace paceline;

extern "C" {

void paceline_change_flags_v1(paceline_page_v1* page, int slot, uint32_t set, uint32_t clear) {
  if (!page->usable()) return;
  Communicator* communicator = find_communicator(page, slot);
  if (communicator == nullptr) return;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  Frame& frame = page->frame(communicator->slot);
  SequenceWrite write(frame.lock);
  put(frame.flags, (get(frame.flags) & ~clear) | set);
}

void paceline_add_sources_v1(paceline_page_v1* page, int slot, uint32_t sources) {
  if (!page->usable()) return;
  Communicator* communicator = find_communicator(page, slot);
  if (communicator == nullptr) return;
  std::lock_guard<std::mutex> guard(page->mutex);
  {
    std::lock_guard<std::mutex> inner(communicator->mutex);
    Frame& frame = page->frame(communicator->slot);
    SequenceWrite write(frame.lock);
    put(frame.sources, get(frame.sources) | sources);
  }
  SequenceWrite write(page->process().lock);
  put(page->process().sources, get(page->process().sources) | sources);
}

void paceline_kernel_started_v1(paceline_page_v1* page, int64_t ticket, uint64_t now_ns) {
  if (!page->usable() || ticket < 0) return;
  Communicator* communicator = find_communicator(page, ticket_slot(ticket));
  if (communicator == nullptr) return;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  Node* node = open_node(communicator, ticket);
  if (node == nullptr || node->kernel_ns != 0) return;
  node->kernel_ns = now_ns;
  Frame& frame = page->frame(communicator->slot);
  if (get(frame.issue) != node->entry.issue) return;
  SequenceWrite write(frame.lock);
  put(frame.first_kernel_ns, now_ns);
}

int paceline_edge_row_v1(paceline_page_v1* page, int slot, int32_t peer, uint8_t direction, uint8_t group) {
  if (!page->usable()) return -1;
  Communicator* communicator = find_communicator(page, slot);
  if (communicator == nullptr) return -1;
  std::lock_guard<std::mutex> guard(communicator->mutex);
  if (!communicator->open || peer < 0 || direction > kReceive || group > 2) return -1;
  SequenceWrite write(page->frame(communicator->slot).lock);
  Edge* edge = find_edge(page, communicator->slot, peer, direction, group);
  if (edge == nullptr) count_error(page);
  return edge == nullptr ? -1 : static_cast<int>(edge - page->edges(communicator->slot));
}

}  // extern "C"
