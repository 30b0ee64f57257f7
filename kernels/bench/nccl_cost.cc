// Cost of the callbacks of NCCL profiler plugins, loaded as NCCL loads them.
//   nccl_cost REPEATS OPERATIONS CHANNELS PLUGIN [OTHER]
// Plays one script, of which each plugin gets the events it asks for, and prints for each repeat CPU nanoseconds and
// instructions per operation (0 where the kernel does not count them), CPU nanoseconds per callback, and callbacks
// per operation, under a name for what the plugin asks for: calls, kernels, or network (32 slices of a ring for
// each channel). The second plugin is measured in turn with the first, as "other". "clock" is one reading of
// CLOCK_MONOTONIC.
#include <dlfcn.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

namespace {

using namespace paceline::nccl;

struct Driven {
  const ProfilerV5* table;
  void* context;
  int mask;
  long calls;
};

Driven plugins[2];
Driven* plugin = plugins;  // the one that is called now
int channels = 2;
int counter = -1;  // of instructions
const int own_pid = getpid();

uint64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void open_counter() {
  perf_event_attr wanted{};
  wanted.type = PERF_TYPE_HARDWARE;
  wanted.size = sizeof wanted;
  wanted.config = PERF_COUNT_HW_INSTRUCTIONS;
  wanted.exclude_kernel = wanted.exclude_hv = 1;
  counter = static_cast<int>(syscall(SYS_perf_event_open, &wanted, 0, -1, -1, 0));
}

uint64_t instructions() {
  uint64_t count = 0;
  return counter >= 0 && read(counter, &count, sizeof count) == sizeof count ? count : 0;
}

// As NCCL: only what the plugin asks for, and nothing of a handle that it did not give.
bool asks(uint64_t type) { return (static_cast<uint64_t>(plugin->mask) & type) != 0; }

void* start(uint64_t type, void* parent, Descriptor* descriptor) {
  void* handle = nullptr;
  if (!asks(type)) return handle;
  descriptor->type = type;
  descriptor->parent = parent;
  plugin->table->start(plugin->context, &handle, descriptor);
  plugin->calls++;
  return handle;
}

void stop(void* handle) {
  if (handle == nullptr) return;
  plugin->table->stop(handle);
  plugin->calls++;
}

void record(void* handle, int state, size_t argument) {
  if (handle == nullptr) return;
  StateArguments arguments{argument};
  plugin->table->record(handle, state, &arguments);
  plugin->calls++;
}

void slices(void* task, int channel, bool send) {
  Descriptor descriptor{};
  descriptor.proxy_op.pid = own_pid;
  descriptor.proxy_op.channel = static_cast<uint8_t>(channel);
  descriptor.proxy_op.peer = send ? 1 : 3;
  descriptor.proxy_op.steps = 16;
  descriptor.proxy_op.is_send = send;
  void* op = start(event::kProxyOp, task, &descriptor);
  if (op == nullptr) return;
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

void operation() {
  static uint64_t sequence = 0, gpu_ns = 1'000'000;
  Descriptor descriptor{};
  void* group = start(event::kGroupApi, nullptr, &descriptor);
  record(group, 23, 0);
  descriptor = Descriptor{};
  descriptor.coll_api.function = "AllReduce";
  descriptor.coll_api.count = 1 << 20;
  descriptor.coll_api.dtype = "ncclBfloat16";
  void* call = start(event::kCollApi, group, &descriptor);
  stop(call);
  record(group, 24, 0);
  Descriptor launch{};
  stop(start(event::kKernelLaunch, group, &launch));
  Descriptor task{};
  task.coll.sequence = sequence++;
  task.coll.function = "AllReduce";
  task.coll.count = 1 << 20;
  task.coll.dtype = "ncclBfloat16";
  task.coll.channels = static_cast<uint8_t>(channels);
  task.coll.algorithm = "RING";
  task.coll.protocol = "SIMPLE";
  void* coll = start(event::kColl, call, &task);
  for (int channel = 0; asks(event::kProxyOp) && channel < channels; channel++) {
    slices(coll, channel, true);
    slices(coll, channel, false);
  }
  stop(coll);
  stop(group);
  for (int channel = 0; asks(event::kKernelCh) && channel < channels; channel++) {
    Descriptor kernel{};
    kernel.kernel.channel = static_cast<uint8_t>(channel);
    kernel.kernel.gpu_ns = gpu_ns += 1'000;
    void* handle = start(event::kKernelCh, coll, &kernel);
    record(handle, state::kKernelStop, gpu_ns += 50'000);
    stop(handle);
  }
}

void measure(const char* name, long operations) {
  plugin->calls = 0;
  uint64_t counted = instructions(), began = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  for (long i = 0; i < operations; i++) operation();
  auto spent = static_cast<double>(clock_ns(CLOCK_THREAD_CPUTIME_ID) - began);
  auto executed = static_cast<double>(instructions() - counted);
  auto times = static_cast<double>(operations), calls = static_cast<double>(plugin->calls);
  double per_call = calls > 0 ? spent / calls : 0;
  printf("%s %.1f %.0f %.1f %.1f\n", name, spent / times, executed / times, per_call, calls / times);
}

void measure_clock(long times) {
  uint64_t began = clock_ns(CLOCK_THREAD_CPUTIME_ID), sum = 0;
  for (long i = 0; i < times; i++) sum += clock_ns(CLOCK_MONOTONIC);
  auto spent = static_cast<double>(clock_ns(CLOCK_THREAD_CPUTIME_ID) - began) / static_cast<double>(times);
  if (sum != 0) printf("clock %.1f 0 %.1f 1\n", spent, spent);
}

void ignore(int, unsigned long, const char*, int, const char*, ...) {}

bool load(const char* path, Driven* driven) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) driven->table = static_cast<const ProfilerV5*>(dlsym(library, "ncclProfiler_v5"));
  if (driven->table == nullptr) {
    fprintf(stderr, "nccl_cost: %s\n", dlerror());
    return false;
  }
  driven->table->init(&driven->context, 1, &driven->mask, "bench", 2, 4, 0, ignore);
  return driven->context != nullptr;
}

const char* name_of(const Driven& driven) {
  if (&driven == &plugins[1]) return "other";
  return driven.mask & 16 ? "network" : driven.mask & 64 ? "kernels" : "calls";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) return 2;
  long repeats = atol(argv[1]), operations = atol(argv[2]);
  channels = atoi(argv[3]);
  int count = argc - 4;
  for (int i = 0; i < count; i++) {
    if (!load(argv[4 + i], &plugins[i])) return 1;
  }
  usleep(50'000);
  open_counter();
  for (long repeat = -1; repeat < repeats; repeat++) {  // the first is for warmth: the clock is tuned on the way
    for (int i = 0; i < count; i++) {
      plugin = &plugins[(i + repeat + 1) % count];
      bool heavy = (plugin->mask & 16) != 0;
      measure(repeat < 0 ? "warm" : name_of(*plugin), heavy ? operations / 8 + 1 : operations);
    }
    measure_clock(operations);
  }
  return 0;
}
