// Cost of the callbacks of the NCCL profiler plugin, loaded as NCCL loads it.
//   nccl_cost PLUGIN REPEATS OPERATIONS
// Prints, for each repeat, nanoseconds per operation and per callback for: an operation with calls only (tier 0), one
// with two kernels, and one with two kernels and 64 network slices; and the two readings of the clock for comparison.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

namespace {

using namespace paceline::nccl;

const ProfilerV5* plugin;
void* context;
long calls;

double now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

void* start(uint64_t type, void* parent, Descriptor* descriptor) {
  void* handle = nullptr;
  descriptor->type = type;
  descriptor->parent = parent;
  plugin->start(context, &handle, descriptor);
  calls++;
  return handle;
}

void stop(void* handle) {
  plugin->stop(handle);
  calls++;
}

void record(void* handle, int state, size_t bytes) {
  StateArguments arguments{bytes};
  plugin->record(handle, state, &arguments);
  calls++;
}

void slices(void* task, int channel, bool send) {
  Descriptor descriptor{};
  descriptor.proxy_op.pid = getpid();
  descriptor.proxy_op.channel = static_cast<uint8_t>(channel);
  descriptor.proxy_op.peer = send ? 1 : 3;
  descriptor.proxy_op.steps = 16;
  descriptor.proxy_op.is_send = send;
  void* op = start(event::kProxyOp, task, &descriptor);
  for (int i = 0; i < 16; i++) {
    Descriptor step{};
    step.proxy_step.step = i;
    void* handle = start(event::kProxyStep, op, &step);
    record(handle, send ? state::kSendGpuWait : state::kRecvWait, 0);
    if (send) record(handle, state::kSendPeerWait, 0);
    record(handle, send ? state::kSendWait : state::kRecvFlushWait, 65536);
    if (!send) record(handle, state::kRecvGpuWait, 0);
    stop(handle);
  }
  stop(op);
}

void operation(bool kernels, bool network) {
  Descriptor descriptor{};
  void* group = start(event::kGroupApi, nullptr, &descriptor);
  record(group, 23, 0);
  descriptor = Descriptor{};
  descriptor.coll_api.function = "AllReduce";
  descriptor.coll_api.count = 1024;
  descriptor.coll_api.dtype = "ncclBfloat16";
  void* call = start(event::kCollApi, group, &descriptor);
  stop(call);
  record(group, 24, 0);
  Descriptor launch{};
  stop(start(event::kKernelLaunch, group, &launch));
  Descriptor task{};
  task.coll.function = "AllReduce";
  task.coll.dtype = "ncclBfloat16";
  task.coll.channels = 2;
  task.coll.algorithm = "RING";
  task.coll.protocol = "SIMPLE";
  void* coll = start(event::kColl, call, &task);
  if (network) {
    for (int channel = 0; channel < 2; channel++) {
      slices(coll, channel, true);
      slices(coll, channel, false);
    }
  }
  stop(coll);
  stop(group);
  for (int channel = 0; kernels && channel < 2; channel++) {
    Descriptor kernel{};
    kernel.kernel.channel = static_cast<uint8_t>(channel);
    void* handle = start(event::kKernelCh, coll, &kernel);
    record(handle, state::kKernelStop, 0);
    stop(handle);
  }
}

void measure(const char* name, long operations, bool kernels, bool network) {
  calls = 0;
  double began = now_ns();
  for (long i = 0; i < operations; i++) operation(kernels, network);
  double spent = now_ns() - began;
  printf("%s %.1f %.1f\n", name, spent / static_cast<double>(operations), spent / static_cast<double>(calls));
}

void measure_clock(long times) {
  double began = now_ns(), sum = 0;
  for (long i = 0; i < times; i++) sum += now_ns();
  double spent = now_ns() - began;
  printf("clock %.1f %.1f\n", sum > 0 ? spent / static_cast<double>(times) : 0, spent / static_cast<double>(times));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  long repeats = atol(argv[2]), operations = atol(argv[3]);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 1;
  plugin = static_cast<const ProfilerV5*>(dlsym(library, "ncclProfiler_v5"));
  if (plugin == nullptr) return 1;
  static int mask;
  plugin->init(&context, 1, &mask, "bench", 2, 4, 0, nullptr);
  usleep(50'000);
  measure("warm", operations, true, true);  // the clock is tuned on the way
  bool kernels = (mask & 64) != 0, network = (mask & 16) != 0;
  for (long repeat = 0; repeat < repeats; repeat++) {
    if (!kernels) measure("calls", operations, false, false);
    if (kernels) measure("kernels", operations, true, false);
    if (network) measure("network", operations / 8 + 1, true, true);
    measure_clock(operations);
  }
  return 0;
}
