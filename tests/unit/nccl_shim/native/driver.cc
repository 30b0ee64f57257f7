// A program that is linked with NCCL and does what it is told, a line at a time: NAME NUMBER...; the answer is the
// result of the call. `driver PLUGIN VERSION`; a plugin of - loads none.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <thread>
#include <vector>

#include "fake.h"

using namespace paceline::nccl;

#define DECLARE(name, parameters) extern "C" Result name parameters;
PACELINE_NCCL_FUNCTIONS(DECLARE)
#undef DECLARE

namespace {

Handle comms[64];
using Numbers = std::vector<long>;

void* pointer(long number) { return reinterpret_cast<void*>(number); }

UniqueId id_of(long seed) {
  UniqueId id{};
  id.bytes[0] = static_cast<char>(seed);
  return id;
}

// Communicators that nobody else uses, in as many threads.
int storm(int threads, int rounds) {
  std::vector<std::thread> all;
  for (int i = 0; i < threads; i++) {
    all.emplace_back([i, rounds] {
      Handle comm;
      ncclCommInitRank(&comm, 4 + i, id_of(i), 0);
      for (int round = 0; round < rounds; round++) {
        ncclAllReduce(nullptr, nullptr, 64, 7, 0, comm, nullptr);
        ncclGroupStart();
        ncclSend(nullptr, 8, 7, 1, comm, nullptr);
        ncclRecv(nullptr, 8, 7, 1, comm, nullptr);
        ncclGroupEnd();
      }
      comms[32 + i] = comm;
    });
  }
  for (auto& thread : all) thread.join();
  return 0;
}

int run_init(const std::string& name, const Numbers& n) {
  static int config;
  auto at = [&](size_t place) { return static_cast<int>(n.at(place)); };
  UniqueId id = id_of(n.size() > 3 ? n[3] : 0);
  if (name == "init") return ncclCommInitRank(&comms[n[0]], at(1), id, at(2));
  if (name == "config") return ncclCommInitRankConfig(&comms[n[0]], at(1), id, at(2), &config);
  if (name == "scalable") return ncclCommInitRankScalable(&comms[n[0]], at(1), at(2), 1, &id, &config);
  if (name == "all") return ncclCommInitAll(&comms[n[0]], at(1), nullptr);
  if (name == "split") return ncclCommSplit(comms[n[0]], at(2), at(3), &comms[n[1]], nullptr);
  int excluded[] = {n.size() > 2 ? at(2) : 0};
  if (name == "shrink") return ncclCommShrink(comms[n[0]], excluded, 1, &comms[n[1]], nullptr, 1);
  if (name == "grow") {  // PARENT or -1, CHILD, RANKS, ID or -1, RANK
    UniqueId root = id_of(at(3));
    Handle parent = n[0] < 0 ? nullptr : comms[n[0]];
    return ncclCommGrow(parent, at(2), n[3] < 0 ? nullptr : &root, at(4), &comms[n[1]], &config);
  }
  return -1000;
}

int run_operation(const std::string& name, const Numbers& n) {
  void *in = pointer(0x10), *out = pointer(0x20), *stream = pointer(0);
  auto at = [&](size_t place) { return static_cast<int>(n.at(place)); };
  Handle comm = comms[n.at(0)];
  auto count = static_cast<size_t>(n.at(1));
  if (name == "allreduce") return ncclAllReduce(in, out, count, at(2), at(3), comm, stream);
  if (name == "broadcast") return ncclBroadcast(in, out, count, at(2), at(3), comm, stream);
  if (name == "bcast") return ncclBcast(in, count, at(2), at(3), comm, stream);
  if (name == "reduce") return ncclReduce(in, out, count, at(2), at(3), at(4), comm, stream);
  if (name == "allgather") return ncclAllGather(in, out, count, at(2), comm, stream);
  if (name == "reducescatter") return ncclReduceScatter(in, out, count, at(2), at(3), comm, stream);
  if (name == "alltoall") return ncclAlltoAll(in, out, count, at(2), comm, stream);
  if (name == "gather") return ncclGather(in, out, count, at(2), at(3), comm, stream);
  if (name == "scatter") return ncclScatter(in, out, count, at(2), at(3), comm, stream);
  if (name == "send") return ncclSend(in, count, at(2), at(3), comm, stream);
  if (name == "recv") return ncclRecv(in, count, at(2), at(3), comm, stream);
  return -1000;
}

int run_other(const std::string& name, const Numbers& n) {
  if (name == "finalize") return ncclCommFinalize(comms[n[0]]);
  if (name == "destroy") return ncclCommDestroy(comms[n[0]]);
  if (name == "abort") return ncclCommAbort(comms[n[0]]);
  Result state = -1;
  if (name == "async") return ncclCommGetAsyncError(comms[n[0]], &state) * 100 + state;
  if (name == "groupstart") return ncclGroupStart();
  if (name == "groupend") return ncclGroupEnd();
  if (name == "simulate") return ncclGroupSimulateEnd(&state);
  int number = 0;
  if (name == "version") return ncclGetVersion(&number) * 100000 + number;
  UniqueId id{};
  if (name == "unique") return ncclGetUniqueId(&id) * 1000 + id.bytes[0];
  if (name == "calls") return fake_calls();
  if (name == "answer") return fake_answer(static_cast<int>(n[0])), 0;
  if (name == "state") return fake_state(static_cast<int>(n[0])), 0;
  if (name == "kernels") {
    fake_hold_kernels(static_cast<int>(n[0]));
    if (n[0] == 0) fake_end_kernels();
    return 0;
  }
  if (name == "starts") return fake_hold_starts(static_cast<int>(n[0])), 0;
  if (name == "storm") return storm(static_cast<int>(n[0]), static_cast<int>(n[1]));
  return -1000;
}

}  // namespace

int main(int count, char** arguments) {
  bool loads = count > 2 && strcmp(arguments[1], "-") != 0;
  printf("%d\n", loads ? fake_load_profiler(arguments[1], atoi(arguments[2])) : 0);
  fflush(stdout);
  char line[256];
  std::thread aside;
  while (fgets(line, sizeof line, stdin) != nullptr) {
    bool apart = line[0] == '&';  // in a thread, without an answer
    char* word = strtok(line + apart, " \n");
    if (word == nullptr) continue;
    std::string name = word;
    Numbers numbers;
    while ((word = strtok(nullptr, " \n")) != nullptr) numbers.push_back(atol(word));
    if (name == "last") {
      printf("%s\n", fake_last());
      fflush(stdout);
      continue;
    }
    auto run = [name, numbers] {
      int result = run_init(name, numbers);
      if (result == -1000) result = run_other(name, numbers);
      if (result == -1000 && numbers.size() > 1) result = run_operation(name, numbers);
      return result;
    };
    if (apart && aside.joinable()) aside.join();
    if (apart) {
      aside = std::thread(run);
      printf("0\n");
    } else {
      printf("%d\n", run());
    }
    fflush(stdout);
  }
  fake_hold_starts(0);
  if (aside.joinable()) aside.join();
  return 0;
}
