#include "call.h"

#include <dlfcn.h>

#include "clock.h"
#include "identity.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

constexpr uint32_t kGroupStartsMax = 64;

struct Starts {
  int places[kGroupStartsMax];
  uint32_t count;
};
thread_local Starts kept{};
thread_local Thread here{};

// CUDA's driver, where it is loaded: operations that go into a graph are no rounds (docs/adr/0032-nccl-rounds.md).
using IsCapturing = int (*)(Stream, int*);

bool is_captured(Stream stream) {
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return false;  // the default streams cannot be
  static const IsCapturing is_capturing = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver != nullptr ? reinterpret_cast<IsCapturing>(dlsym(driver, "cuStreamIsCapturing")) : nullptr;
  }();
  int status = 0;
  return is_capturing != nullptr && is_capturing(stream, &status) == 0 && status != 0;
}

}  // namespace

Thread& this_thread() { return here; }

bool only_forward(const Thread& thread) {
  static const bool disabled = is_disabled();
  return thread.inside > 0 || disabled;
}

Event* begin_call(const Thread& thread, Handle handle, Stream stream, const ApiCall& what) {
  Comm* comm = find_comm(handle);
  if (comm == nullptr || is_captured(stream)) return nullptr;
  Call account;
  Event* event = begin_outer_call(comm, what, account.now_ns());
  if (thread.depth == 0) launch_outer_group(account.now_ns());
  return event;
}

void end_call(const Thread& thread, Event* call, Result result) {
  if (call == nullptr) return;
  Call account;
  end_outer_call(call, has_failed(result), account.now_ns());
  if (thread.depth == 0) end_outer_group(has_failed(result), account.now_ns());
}

void launch_group() {
  Call account;
  launch_outer_group(account.now_ns());
}

void keep_start(int start) {
  if (start < 0) return;
  if (kept.count < kGroupStartsMax) kept.places[kept.count++] = start;
  else end_start(start, kInProgress, nullptr);  // its end is seen when somebody asks NCCL for it
}

void end_group(Result result, bool launched, const void* caller) {
  for (uint32_t i = 0; i < kept.count; i++) end_start(kept.places[i], result, caller);
  kept.count = 0;
  Call account;
  end_outer_group(has_failed(result) || !launched, account.now_ns());
}

}  // namespace paceline::nccl
