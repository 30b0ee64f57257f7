// Cost of a call of NCCL through the preloaded shim, against the same call of the library itself.
//   LD_PRELOAD=SHIM nccl_shim_cost REPEATS CALLS LIBRARY
// Prints "page 0" or "page 1" (whether the shim observes), then for each repeat and kind of call a line NAME DIRECT
// SHIM: CPU nanoseconds per call without and with the shim, measured in turn. all_reduce is one call; messages is a
// group of a send and a receive, divided by its four calls.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <utility>

#include "api.h"

namespace {

using namespace paceline::nccl;

const Stream kStream = reinterpret_cast<Stream>(uintptr_t{64});  // none of the default ones

struct Calls {
  Result (*init)(Handle*, int, UniqueId, int);
  Result (*all_reduce)(const void*, void*, size_t, int, int, Handle, Stream);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void*, size_t, int, int, Handle, Stream);
  Result (*receive)(void*, size_t, int, int, Handle, Stream);
};

template <class Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return;
  fprintf(stderr, "nccl_shim_cost: no %s\n", name);
  exit(1);
}

Calls calls_of(void* library) {
  Calls calls{};
  find(library, "ncclCommInitRank", &calls.init);
  find(library, "ncclAllReduce", &calls.all_reduce);
  find(library, "ncclGroupStart", &calls.group_start);
  find(library, "ncclGroupEnd", &calls.group_end);
  find(library, "ncclSend", &calls.send);
  find(library, "ncclRecv", &calls.receive);
  return calls;
}

double cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

double all_reduce(const Calls& calls, Handle comm, long times) {
  double began = cpu_ns();
  for (long i = 0; i < times; i++) calls.all_reduce(nullptr, nullptr, 1 << 20, 7, 0, comm, kStream);
  return (cpu_ns() - began) / static_cast<double>(times);
}

double messages(const Calls& calls, Handle comm, long times) {
  double began = cpu_ns();
  for (long i = 0; i < times / 4; i++) {
    calls.group_start();
    calls.send(nullptr, 1 << 20, 7, 1, comm, kStream);
    calls.receive(nullptr, 1 << 20, 7, 3, comm, kStream);
    calls.group_end();
  }
  return (cpu_ns() - began) / static_cast<double>(times / 4 * 4);
}

bool has_page() {
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[1024];
  bool found = false;
  while (maps != nullptr && fgets(line, sizeof line, maps) != nullptr) {
    found |= strstr(line, "paceline-page") != nullptr;
  }
  if (maps != nullptr) fclose(maps);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  long repeats = atol(argv[1]), times = atol(argv[2]);
  void* library = dlopen(argv[3], RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    fprintf(stderr, "nccl_shim_cost: %s is not loaded\n", argv[3]);
    return 1;
  }
  const Calls direct = calls_of(library), shim = calls_of(RTLD_DEFAULT);
  if (direct.all_reduce == shim.all_reduce) {
    fprintf(stderr, "nccl_shim_cost: the shim is not preloaded\n");
    return 1;
  }
  Handle comm = nullptr;
  if (shim.init(&comm, 4, UniqueId{}, 0) != 0) return 1;
  printf("page %d\n", has_page());
  for (long repeat = -1; repeat < repeats; repeat++) {  // the first is for warmth
    for (auto [name, run] : {std::pair("all_reduce", all_reduce), std::pair("messages", messages)}) {
      bool first = (repeat & 1) == 0;  // which of them comes first takes turns
      double before = run(first ? direct : shim, comm, times), after = run(first ? shim : direct, comm, times);
      if (repeat >= 0) printf("%s %.2f %.2f\n", name, first ? before : after, first ? after : before);
    }
  }
  return 0;
}
