// Stands in for libnccl.so.2: plain names are weak and the p-names strong, calls are written down, and a profiler
// plugin is told what NCCL tells it. Nothing is communicated.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "fake.h"

using namespace paceline::nccl;

namespace {

struct FakeComm {
  int nranks, rank;
  uint64_t hash;
  void* context = nullptr;
};

struct Task {
  FakeComm* comm;
  Descriptor call;
  void* handle;
  int peer;
};

struct ThreadState {
  int depth = 0;
  void* group = nullptr;
  std::vector<Task> tasks;
};

thread_local ThreadState here;
thread_local char last[512];
std::mutex mutex;
std::vector<void*> running;
std::atomic<int> calls{0}, answer{0}, state_answer{0}, mask{0};
std::atomic<bool> hold_kernels{false}, hold_starts{false};
const ProfilerV4* v4 = nullptr;
const ProfilerV5* v5 = nullptr;

Result note(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last, sizeof last, format, arguments);
  va_end(arguments);
  calls++;
  return answer.load();
}

bool is_asked(uint64_t type) { return (static_cast<uint64_t>(mask.load()) & type) != 0; }

void* begin(void* context, Descriptor descriptor) {
  void* handle = nullptr;
  uint64_t type = descriptor.type;
  if (context == nullptr || !is_asked(type)) return nullptr;
  (v5 != nullptr ? v5->start : v4->start)(context, &handle, &descriptor);
  return handle;
}

void end(void* handle) {
  if (handle != nullptr) (v5 != nullptr ? v5->stop : v4->stop)(handle);
}

void run_kernel(FakeComm* comm, void* task) {
  Descriptor kernel{};
  kernel.type = event::kKernelCh;
  kernel.parent = task;
  void* handle = begin(comm->context, kernel);
  if (handle == nullptr) return;
  if (!hold_kernels) return end(handle);
  std::lock_guard<std::mutex> guard(mutex);
  running.push_back(handle);
}

void launch_task(const Task& call, void* parent) {
  Descriptor task{};
  task.parent = parent;
  bool message = call.call.type == event::kP2pApi;
  if (message) {
    task.type = event::kP2p;
    task.p2p.function = call.call.p2p_api.function;
    task.p2p.dtype = call.call.p2p_api.dtype;
    task.p2p.count = call.call.p2p_api.count;
    task.p2p.peer = call.peer;
    task.p2p.channels = 1;
  } else {
    task.type = event::kColl;
    task.coll.function = call.call.coll_api.function;
    task.coll.dtype = call.call.coll_api.dtype;
    task.coll.count = call.call.coll_api.count;
    task.coll.root = call.call.coll_api.root;
    task.coll.channels = 1;
    task.coll.algorithm = "RING";
    task.coll.protocol = "SIMPLE";
  }
  void* handle = begin(call.comm->context, task);
  run_kernel(call.comm, handle);
  end(handle);
}

void launch() {
  void* group = here.group;
  if (v5 != nullptr && group != nullptr) v5->record(group, state::kEndApiStart, nullptr);
  for (const Task& task : here.tasks) {
    if (v5 != nullptr) {
      launch_task(task, task.handle);
      continue;
    }
    Descriptor wrap{};
    wrap.type = event::kGroup;
    void* old = begin(task.comm->context, wrap);
    if (old != nullptr) launch_task(task, old);
    end(old);
  }
  here.tasks.clear();
  here.group = nullptr;
  if (v5 != nullptr) end(group);
}

void call(FakeComm* comm, Descriptor descriptor, int peer) {
  if (answer != 0 || (v4 == nullptr && v5 == nullptr)) return;
  if (v5 != nullptr && here.group == nullptr) {
    Descriptor group{};
    group.type = event::kGroupApi;
    here.group = begin(comm->context, group);
  }
  descriptor.parent = here.group;
  void* handle = v5 != nullptr ? begin(comm->context, descriptor) : nullptr;
  end(handle);
  here.tasks.push_back(Task{comm, descriptor, handle, peer});
  if (here.depth == 0) launch();
}

const char* const kTypes[] = {"ncclInt8",  "ncclUint8",   "ncclInt32",   "ncclUint32",  "ncclInt64",      "ncclUint64",
                              "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3",
                              "ncclFloat8e5m2"};

void collective(const char* name, size_t count, int type, int root, Handle comm) {
  Descriptor descriptor{};
  descriptor.type = event::kCollApi;
  descriptor.coll_api.function = name;
  descriptor.coll_api.count = count;
  descriptor.coll_api.dtype = kTypes[type];
  descriptor.coll_api.root = root;
  call(static_cast<FakeComm*>(comm), descriptor, -1);
}

void message(const char* name, size_t count, int type, int peer, Handle comm) {
  Descriptor descriptor{};
  descriptor.type = event::kP2pApi;
  descriptor.p2p_api.function = name;
  descriptor.p2p_api.count = count;
  descriptor.p2p_api.dtype = kTypes[type];
  call(static_cast<FakeComm*>(comm), descriptor, peer);
}

void start_on_thread(FakeComm* comm) {
  while (hold_starts) usleep(1000);
  static int shared_mask = 0;
  if (v5 != nullptr) v5->init(&comm->context, comm->hash, &shared_mask, "", 1, comm->nranks, comm->rank, nullptr);
  else if (v4 != nullptr) v4->init(&comm->context, &shared_mask, "", comm->hash, 1, comm->nranks, comm->rank, nullptr);
  mask = __atomic_load_n(&shared_mask, __ATOMIC_RELAXED);
}

// NCCL initialises in threads of its own.
void start(Handle* where, int nranks, int rank, uint64_t hash) {
  if (answer != 0 && answer != kInProgress) return;
  auto* comm = new FakeComm{nranks, rank, hash};
  std::thread(start_on_thread, comm).join();
  *where = comm;
}

uint64_t hash_of(const UniqueId& id) { return static_cast<unsigned char>(id.bytes[0]) + 1000u; }

void finish(Handle handle) {
  auto* comm = static_cast<FakeComm*>(handle);
  if (comm->context != nullptr) (v5 != nullptr ? v5->finalize : v4->finalize)(comm->context);
  delete comm;
}

}  // namespace

#ifndef FAKE_VERSION
#define FAKE_VERSION 22005
#endif

#ifdef FAKE_PLAIN  // a library without p-names
#define API(result, name, ...) extern "C" __attribute__((visibility("default"))) result name(__VA_ARGS__)
#else
#define API(result, name, ...)                                                            \
  extern "C" __attribute__((visibility("default"))) result p##name(__VA_ARGS__);          \
  extern "C" __attribute__((visibility("default"), weak, alias("p" #name))) result name(__VA_ARGS__); \
  extern "C" result p##name(__VA_ARGS__)
#endif

API(Result, ncclGetVersion, int* version) {
  *version = FAKE_VERSION;
  return note("GetVersion");
}
API(Result, ncclGetUniqueId, UniqueId* id) {
  id->bytes[0] = 7;
  return note("GetUniqueId");
}
API(Result, ncclCommInitRank, Handle* comm, int nranks, UniqueId id, int rank) {
  start(comm, nranks, rank, hash_of(id));
  return note("CommInitRank %d %d %d", nranks, id.bytes[0], rank);
}
API(Result, ncclCommInitRankConfig, Handle* comm, int nranks, UniqueId id, int rank, Config* config) {
  start(comm, nranks, rank, hash_of(id));
  return note("CommInitRankConfig %d %d %d %d", nranks, id.bytes[0], rank, config != nullptr);
}
API(Result, ncclCommInitRankScalable, Handle* comm, int nranks, int rank, int ids, UniqueId* id, Config* config) {
  start(comm, nranks, rank, hash_of(*id));
  return note("CommInitRankScalable %d %d %d %d %d", nranks, rank, ids, id->bytes[0], config != nullptr);
}
API(Result, ncclCommInitAll, Handle* comms, int count, const int* devices) {
  for (int i = 0; i < count; i++) start(&comms[i], count, i, 99);
  return note("CommInitAll %d %d", count, devices == nullptr);
}
API(Result, ncclCommSplit, Handle comm, int color, int key, Handle* child, Config* config) {
  auto* parent = static_cast<FakeComm*>(comm);
  if (color < 0) *child = nullptr;
  else start(child, parent->nranks / 2, parent->rank / 2, parent->hash * 31 + static_cast<uint64_t>(color));
  return note("CommSplit %d %d %d", color, key, config != nullptr);
}
API(Result, ncclCommShrink, Handle comm, int* excluded, int count, Handle* child, Config* config, int flags) {
  auto* parent = static_cast<FakeComm*>(comm);
  start(child, parent->nranks - count, parent->rank, parent->hash);
  return note("CommShrink %d %d %d %d", excluded[0], count, config != nullptr, flags);
}
API(Result, ncclCommGrow, Handle comm, int nranks, const UniqueId* id, int rank, Handle* child, Config* config) {
  start(child, nranks, comm != nullptr ? static_cast<FakeComm*>(comm)->rank : rank, 4242);
  return note("CommGrow %d %d %d %d %d", comm != nullptr, nranks, id != nullptr ? id->bytes[0] : -1, rank,
              config != nullptr);
}
API(Result, ncclCommFinalize, Handle) { return note("CommFinalize"); }
API(Result, ncclCommDestroy, Handle comm) {
  finish(comm);
  return note("CommDestroy");
}
API(Result, ncclCommAbort, Handle comm) {
  finish(comm);
  return note("CommAbort");
}
API(Result, ncclCommGetAsyncError, Handle, Result* state) {
  *state = state_answer;
  return note("CommGetAsyncError");
}
API(Result, ncclCommCount, const Handle comm, int* count) {
  *count = static_cast<FakeComm*>(comm)->nranks;
  return 0;
}
API(Result, ncclCommUserRank, const Handle comm, int* rank) {
  *rank = static_cast<FakeComm*>(comm)->rank;
  return 0;
}
API(Result, ncclGroupStart, ) {
  here.depth++;
  return note("GroupStart");
}
API(Result, ncclGroupEnd, ) {
  if (--here.depth == 0) launch();
  return note("GroupEnd");
}
API(Result, ncclGroupSimulateEnd, void* estimate) {
  here.depth--;
  here.tasks.clear();
  return note("GroupSimulateEnd %d", estimate != nullptr);
}
API(Result, ncclAllReduce, const void* in, void* out, size_t count, int type, int op, Handle comm, Stream stream) {
  collective("AllReduce", count, type, -1, comm);
  return note("AllReduce %p %p %zu %d %d %p", in, out, count, type, op, stream);
}
API(Result, ncclBroadcast, const void* in, void* out, size_t count, int type, int root, Handle comm, Stream stream) {
  collective("Broadcast", count, type, root, comm);
  return note("Broadcast %p %p %zu %d %d %p", in, out, count, type, root, stream);
}
API(Result, ncclBcast, void* buffer, size_t count, int type, int root, Handle comm, Stream stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);  // as NCCL does, by the public name
}
API(Result, ncclReduce, const void* in, void* out, size_t count, int type, int op, int root, Handle comm,
    Stream stream) {
  collective("Reduce", count, type, root, comm);
  return note("Reduce %p %p %zu %d %d %d %p", in, out, count, type, op, root, stream);
}
API(Result, ncclAllGather, const void* in, void* out, size_t count, int type, Handle comm, Stream stream) {
  collective("AllGather", count, type, -1, comm);
  return note("AllGather %p %p %zu %d %p", in, out, count, type, stream);
}
API(Result, ncclReduceScatter, const void* in, void* out, size_t count, int type, int op, Handle comm, Stream stream) {
  collective("ReduceScatter", count, type, -1, comm);
  return note("ReduceScatter %p %p %zu %d %d %p", in, out, count, type, op, stream);
}
API(Result, ncclAlltoAll, const void* in, void* out, size_t count, int type, Handle comm, Stream stream) {
  collective("AlltoAll", count, type, -1, comm);
  return note("AlltoAll %p %p %zu %d %p", in, out, count, type, stream);
}
API(Result, ncclGather, const void* in, void* out, size_t count, int type, int root, Handle comm, Stream stream) {
  collective("Gather", count, type, root, comm);
  return note("Gather %p %p %zu %d %d %p", in, out, count, type, root, stream);
}
API(Result, ncclScatter, const void* in, void* out, size_t count, int type, int root, Handle comm, Stream stream) {
  collective("Scatter", count, type, root, comm);
  return note("Scatter %p %p %zu %d %d %p", in, out, count, type, root, stream);
}
API(Result, ncclSend, const void* buffer, size_t count, int type, int peer, Handle comm, Stream stream) {
  message("Send", count, type, peer, comm);
  return note("Send %p %zu %d %d %p", buffer, count, type, peer, stream);
}
API(Result, ncclRecv, void* buffer, size_t count, int type, int peer, Handle comm, Stream stream) {
  message("Recv", count, type, peer, comm);
  return note("Recv %p %zu %d %d %p", buffer, count, type, peer, stream);
}

extern "C" {
const char* fake_last() { return last; }
int fake_calls() { return calls; }
void fake_answer(int result) { answer = result; }
void fake_state(int result) { state_answer = result; }
void fake_hold_kernels(int hold) { hold_kernels = hold != 0; }
void fake_hold_starts(int hold) { hold_starts = hold != 0; }
void fake_end_kernels() {
  std::lock_guard<std::mutex> guard(mutex);
  for (void* handle : running) end(handle);
  running.clear();
}
int fake_load_profiler(const char* path, int version) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return -1;
  if (version >= 5) v5 = static_cast<const ProfilerV5*>(dlsym(library, "ncclProfiler_v5"));
  else v4 = static_cast<const ProfilerV4*>(dlsym(library, "ncclProfiler_v4"));
  return v4 != nullptr || v5 != nullptr ? 0 : -1;
}
}
