// The round ring: the newest operations, and rounds that are kept longer at four rates.
#include "page.h"

namespace paceline {
namespace {

// A free entry of the newest rounds: the one that completed first. Open ones are never in the queue.
uint16_t take_ring_entry(Communicator* communicator) {
  if (communicator->reusable_count == 0) return kNone;
  uint16_t entry = communicator->reusable[communicator->reusable_first];
  communicator->reusable_first = (communicator->reusable_first + 1) % PACELINE_ROUNDS_NEWEST_MAX;
  communicator->reusable_count--;
  return entry;
}

void give_ring_entry(Communicator* communicator, uint16_t entry) {
  uint32_t last = communicator->reusable_first + communicator->reusable_count++;
  communicator->reusable[last % PACELINE_ROUNDS_NEWEST_MAX] = static_cast<uint8_t>(entry);
}

}  // namespace

void count_dropped(paceline_page_v1* page, Communicator* communicator) {
  Frame& frame = page->frame(communicator->slot);
  add(frame.dropped, 1);
  put(frame.flags, get(frame.flags) | PACELINE_FRAME_FLAG_DROPPED);
  add_shared(page->process().operations_dropped, 1);
}

// Every rank enters the same rounds, so every rank gives a kept round the same place.
void place_kept(Communicator* communicator, uint64_t round, uint8_t (&places)[kKeptLevelCount]) {
  uint64_t mixed = paceline_mix64_v1(round);
  for (uint32_t k = 0; k < kKeptLevelCount; k++) {
    bool kept = (mixed & ((uint64_t{1} << kKeptLevels[k]) - 1)) == 0;
    places[k] = kept ? static_cast<uint8_t>(communicator->kept_entered[k]++ % PACELINE_ROUNDS_KEPT_MAX) : 0xff;
  }
}

bool record_entered(paceline_page_v1* page, Communicator* communicator, Node* node) {
  bool wanted = get(page->requested().detail) != PACELINE_DETAIL_LEVEL_OFF;
  node->ring = wanted ? take_ring_entry(communicator) : kNone;
  if (node->ring != kNone) {
    put_words(&page->rounds(communicator->slot)[node->ring], &node->entry, sizeof(Round));
    RoundTimes times{};
    times.bytes = node->bytes;
    times.step = node->step;
    put_words(&page->times(communicator->slot)[node->ring], &times, sizeof times);
  }
  return node->ring != kNone || !wanted;
}

void record_completed(paceline_page_v1* page, Communicator* communicator, const Node& node,
                      const RoundTimes& times) {
  Round* rounds = page->rounds(communicator->slot);
  RoundTimes* all_times = page->times(communicator->slot);
  if (node.ring != kNone) {
    put_words(&rounds[node.ring], &node.entry, sizeof(Round));
    put_words(&all_times[node.ring], &times, sizeof times);
    give_ring_entry(communicator, node.ring);
  }
  if (get(page->requested().detail) == PACELINE_DETAIL_LEVEL_OFF) return;
  for (uint32_t k = 0; k < kKeptLevelCount; k++) {
    if (node.kept[k] == 0xff) continue;
    uint32_t place = PACELINE_ROUNDS_NEWEST_MAX + k * PACELINE_ROUNDS_KEPT_MAX + node.kept[k];
    if (get(rounds[place].round) > node.entry.round) continue;  // a later round was faster
    put_words(&rounds[place], &node.entry, sizeof(Round));
    put_words(&all_times[place], &times, sizeof times);
  }
}

}  // namespace paceline
