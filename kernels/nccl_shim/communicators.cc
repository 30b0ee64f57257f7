// Communicators: begun, ended, and asked how they are.
#include <unistd.h>

#include <atomic>

#include "call.h"
#include "plugin.h"

using namespace paceline::nccl;

namespace {

// Of communicators whose members are all in this process: nobody else needs to come to the same.
uint64_t private_hash() {
  static std::atomic<uint64_t> made{0};
  const uint64_t words[] = {paceline::monotonic_ns(), static_cast<uint64_t>(getpid()), made.fetch_add(1)};
  return hash_bytes(words, sizeof words);
}

constexpr int kDevicesMax = 64;

// Closed when NCCL is through; its handle is forgotten before, because NCCL may give it out again.
template <class Function>
Result end(Handle handle, Function forward) {
  Thread& thread = this_thread();
  if (only_forward(thread)) return forward(handle);
  Comm* comm = forget_comm(handle);
  Inside inside(&thread);
  Result result = forward(handle);
  if (comm != nullptr) close_comm(comm);
  return result;
}

}  // namespace

PACELINE_EXPORT Result ncclGetVersion(int* version) {
  PACELINE_FIND(ncclGetVersion);
  return forward(version);
}

PACELINE_EXPORT Result ncclGetUniqueId(UniqueId* id) {
  PACELINE_FIND(ncclGetUniqueId);
  return forward(id);
}

PACELINE_EXPORT Result ncclCommInitRank(Handle* comm, int nranks, UniqueId id, int rank) {
  PACELINE_FIND(ncclCommInitRank);
  Start start{"ncclCommInitRank", comm, nullptr, hash_bytes(&id, sizeof id), nranks, rank};
  return observe_start(start, caller, [&] { return forward(comm, nranks, id, rank); });
}

PACELINE_EXPORT Result ncclCommInitRankConfig(Handle* comm, int nranks, UniqueId id, int rank, Config* config) {
  PACELINE_FIND(ncclCommInitRankConfig);
  Start start{"ncclCommInitRankConfig", comm, nullptr, hash_bytes(&id, sizeof id), nranks, rank};
  return observe_start(start, caller, [&] { return forward(comm, nranks, id, rank, config); });
}

PACELINE_EXPORT Result ncclCommInitRankScalable(Handle* comm, int nranks, int rank, int ids, UniqueId* id,
                                                Config* config) {
  PACELINE_FIND(ncclCommInitRankScalable);
  uint64_t hash = id != nullptr && ids > 0 ? hash_bytes(id, static_cast<size_t>(ids) * sizeof *id) : 0;
  Start start{"ncclCommInitRankScalable", comm, nullptr, hash, nranks, rank};
  return observe_start(start, caller, [&] { return forward(comm, nranks, rank, ids, id, config); });
}

PACELINE_EXPORT Result ncclCommInitAll(Handle* comms, int count, const int* devices) {
  PACELINE_FIND(ncclCommInitAll);
  Thread& thread = this_thread();
  if (only_forward(thread) || comms == nullptr || count <= 0 || count > kDevicesMax) {
    return forward(comms, count, devices);
  }
  int starts[kDevicesMax];
  uint64_t hash = private_hash();
  for (int i = 0; i < count; i++) {
    starts[i] = begin_start(Start{"ncclCommInitAll", &comms[i], nullptr, hash, count, i});
  }
  Result result;
  {
    Inside inside(&thread);
    result = forward(comms, count, devices);
  }
  for (int i = 0; i < count; i++) end_start(starts[i], result, caller);
  return result;
}

PACELINE_EXPORT Result ncclCommSplit(Handle comm, int color, int key, Handle* child, Config* config) {
  PACELINE_FIND(ncclCommSplit);
  if (only_forward(this_thread())) return forward(comm, color, key, child, config);
  Start start{"ncclCommSplit", child, comm, hash_child(comm, static_cast<uint32_t>(color)), -1, -1};
  return observe_start(start, caller, [&] { return forward(comm, color, key, child, config); });
}

PACELINE_EXPORT Result ncclCommShrink(Handle comm, int* excluded, int count, Handle* child, Config* config,
                                      int flags) {
  PACELINE_FIND(ncclCommShrink);
  if (only_forward(this_thread())) return forward(comm, excluded, count, child, config, flags);
  uint64_t left = 0;  // in whatever order they are named
  for (int i = 0; excluded != nullptr && i < count; i++) {
    left ^= paceline_mix64_v1(static_cast<uint64_t>(excluded[i]) + 1);
  }
  Start start{"ncclCommShrink", child, comm, hash_child(comm, left), -1, -1};
  return observe_start(start, caller, [&] { return forward(comm, excluded, count, child, config, flags); });
}

// Those who were there know the parent, those who come know the id: there is nothing that all members know, so the
// communicator is the one that NCCL tells the profiler of, or nobody's.
PACELINE_EXPORT Result ncclCommGrow(Handle comm, int nranks, const UniqueId* id, int rank, Handle* child,
                                    Config* config) {
  PACELINE_FIND(ncclCommGrow);
  Start start{"ncclCommGrow", child, comm, 0, nranks, rank};
  return observe_start(start, caller, [&] { return forward(comm, nranks, id, rank, child, config); });
}

PACELINE_EXPORT Result ncclCommFinalize(Handle comm) {
  PACELINE_FIND(ncclCommFinalize);
  return forward(comm);
}

PACELINE_EXPORT Result ncclCommDestroy(Handle comm) {
  PACELINE_FIND(ncclCommDestroy);
  return end(comm, forward);
}

PACELINE_EXPORT Result ncclCommAbort(Handle comm) {
  PACELINE_FIND(ncclCommAbort);
  return end(comm, forward);
}

PACELINE_EXPORT Result ncclCommGetAsyncError(Handle comm, Result* state) {
  PACELINE_FIND(ncclCommGetAsyncError);
  Result result = forward(comm, state);
  if (result == kSuccess && state != nullptr && !only_forward(this_thread())) check_starts(comm, *state, caller);
  return result;
}

PACELINE_EXPORT Result ncclGroupStart() {
  PACELINE_FIND(ncclGroupStart);
  Thread& thread = this_thread();
  Result result = forward();
  if (result == kSuccess && !only_forward(thread)) thread.depth++;
  return result;
}

namespace {

template <class Call>
Result end_groups(bool launches, const void* caller, Call call) {
  Thread& thread = this_thread();
  if (only_forward(thread) || thread.depth == 0) return call();
  bool outermost = thread.depth == 1;
  if (outermost && launches) launch_group();
  Result result;
  {
    Inside inside(&thread);
    result = call();
  }
  thread.depth--;
  if (outermost) end_group(result, launches, caller);
  return result;
}

}  // namespace

PACELINE_EXPORT Result ncclGroupEnd() {
  PACELINE_FIND(ncclGroupEnd);
  return end_groups(true, caller, [&] { return forward(); });
}

PACELINE_EXPORT Result ncclGroupSimulateEnd(void* estimate) {
  PACELINE_FIND(ncclGroupSimulateEnd);
  return end_groups(false, caller, [&] { return forward(estimate); });
}
