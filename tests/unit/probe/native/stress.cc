// Test helper around the page writer.
//   stress race SECONDS        several writers, one reader that checks the invariants of every frame
//   stress torn                writes half a frame and waits to be killed; prints "PID FD" first
//   stress rounds N COMM RANK  completes N rounds, prints "PID FD" and waits for the end of stdin
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "page.h"

namespace {

using namespace paceline;

paceline_page_v1* create() {
  paceline_identity_v1 identity{"stress", "1", 0, 2, 0};
  paceline_page_v1* page = nullptr;
  int error = paceline_page_create_v1(&identity, "none", &page);
  if (error != 0) {
    fprintf(stderr, "create: %s\n", strerror(-error));
    exit(2);
  }
  return page;
}

int open_one(paceline_page_v1* page, uint64_t comm, uint32_t rank) {
  paceline_communicator_v1 opened{comm, 0, rank, 2, rank, PACELINE_SOURCE_TORCH_HOOK};
  return paceline_open_communicator_v1(page, &opened);
}

paceline_operation_v1 all_reduce(uint64_t count) {
  paceline_operation_v1 operation{};
  operation.count = operation.signature_count = count;
  operation.bytes = 4 * count;
  operation.peer = -1;
  operation.function = PACELINE_FUNCTION_ALL_REDUCE;
  return operation;
}

void write_until(paceline_page_v1* page, int slot, unsigned seed, const std::atomic<bool>& stop) {
  std::vector<int64_t> open;
  while (!stop.load(std::memory_order_relaxed)) {
    seed = seed * 1103515245u + 12345u;
    if (open.size() < 8 && (seed >> 16) % 2 == 0) {
      paceline_operation_v1 operation = all_reduce(1);
      if ((seed >> 17) % 4 == 0) {
        operation.function = PACELINE_FUNCTION_SEND;
        operation.peer = static_cast<int32_t>((seed >> 20) % 2);
      }
      open.push_back(paceline_enter_v1(page, slot, &operation));
      paceline_returned_v1(page, open.back());
    } else if (!open.empty()) {
      size_t index = (seed >> 18) % open.size();
      paceline_complete_v1(page, open[index], 0);
      open.erase(open.begin() + static_cast<long>(index));
    }
  }
  for (int64_t ticket : open) paceline_complete_v1(page, ticket, 0);
}

bool read_frame(paceline_page_v1* page, uint32_t slot, Frame* copy) {
  Frame& frame = page->frame(slot);
  for (int i = 0; i < 1000; i++) {
    uint32_t before = __atomic_load_n(&frame.lock, __ATOMIC_ACQUIRE);
    if ((before & 1u) == 0) {
      get_words(copy, &frame, sizeof(Frame));
      std::atomic_thread_fence(std::memory_order_acquire);
      if (get(frame.lock) == before) return true;
    }
    std::this_thread::yield();
  }
  return false;
}

bool holds(const Frame& frame) {
  bool counts = frame.completed <= frame.enqueued && frame.enqueued <= frame.started;
  bool head = frame.head_round == 0 ? true : frame.head_round <= frame.round && frame.head_entered_ns != 0;
  bool none = frame.started == frame.completed ? frame.head_round == 0 : frame.head_round != 0;
  return counts && head && none && frame.round == frame.started && frame.open_ops <= 64;
}

int race(double seconds) {
  paceline_page_v1* page = create();
  int slots[2] = {open_one(page, 1, 0), open_one(page, 2, 0)};
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (unsigned i = 0; i < 4; i++) writers.emplace_back([&, i] { write_until(page, slots[i % 2], i, stop); });
  uint64_t end_ns = monotonic_ns() + static_cast<uint64_t>(seconds * 1e9), reads = 0, bad = 0;
  while (monotonic_ns() < end_ns) {
    for (uint32_t slot = 0; slot < 2; slot++) {
      Frame copy;
      if (!read_frame(page, slot, &copy)) continue;
      reads++;
      bad += !holds(copy);
    }
    paceline_page_set_phase_v1(page, reads % 5, "race");
    paceline_page_beat_v1(page);
  }
  stop = true;
  for (auto& writer : writers) writer.join();
  uint64_t open = 0, started = 0;
  for (uint32_t slot = 0; slot < 2; slot++) {
    open += get(page->frame(slot).open_ops);
    started += get(page->frame(slot).started);
  }
  uint64_t errors = get(page->process().errors);
  paceline_page_destroy_v1(page);
  printf("reads %lu bad %lu open %lu started %lu errors %lu\n", reads, bad, open, started, errors);
  return bad == 0 && open == 0 && errors == 0 && reads > 0 && started > 0 ? 0 : 1;
}

void announce(paceline_page_v1* page) {
  printf("%d %d\n", static_cast<int>(getpid()), paceline_page_fd_v1(page));
  fflush(stdout);
}

int torn() {
  paceline_page_v1* page = create();
  int slot = open_one(page, 7, 0);
  paceline_operation_v1 operation = all_reduce(5);
  for (int i = 0; i < 3; i++) paceline_complete_v1(page, paceline_enter_v1(page, slot, &operation), 0);
  SequenceWrite write(page->frame(0).lock);
  put(page->frame(0).started, 99);
  announce(page);
  pause();
  return 0;
}

int rounds(long count, uint64_t comm, uint32_t rank) {
  paceline_page_v1* page = create();
  int slot = open_one(page, comm, rank);
  paceline_operation_v1 operation = all_reduce(5);
  for (long i = 0; i < count; i++) paceline_complete_v1(page, paceline_enter_v1(page, slot, &operation), 0);
  announce(page);
  while (getchar() != EOF) {
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "race") == 0) return race(atof(argv[2]));
  if (argc == 2 && strcmp(argv[1], "torn") == 0) return torn();
  if (argc == 5 && strcmp(argv[1], "rounds") == 0) {
    return rounds(atol(argv[2]), strtoull(argv[3], nullptr, 10), static_cast<uint32_t>(atol(argv[4])));
  }
  return 2;
}
