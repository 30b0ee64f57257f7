// Cost of one enter + complete in C: prints nanoseconds per pair, one repeat a line.
//   probe_cost REPEATS PAIRS
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "paceline/page_v1.h"

static double now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  long repeats = atol(argv[1]), pairs = atol(argv[2]);
  paceline_identity_v1 identity{"bench", "1", 0, 8, 0};
  paceline_page_v1* page = nullptr;
  if (paceline_page_create_v1(&identity, "bench", &page) != 0) return 1;
  paceline_communicator_v1 opened{1, 0, 0, 8, 0, PACELINE_SOURCE_TORCH_HOOK};
  int slot = paceline_open_communicator_v1(page, &opened);
  paceline_operation_v1 operation{};
  operation.count = operation.signature_count = 1024;
  operation.bytes = 4096;
  operation.peer = -1;
  operation.function = PACELINE_FUNCTION_ALL_REDUCE;
  for (long repeat = 0; repeat < repeats; repeat++) {
    double start = now_ns();
    for (long i = 0; i < pairs; i++) paceline_complete_v1(page, paceline_enter_v1(page, slot, &operation), 0);
    printf("%.2f\n", (now_ns() - start) / static_cast<double>(pairs));
  }
  paceline_page_destroy_v1(page);
  return 0;
}
