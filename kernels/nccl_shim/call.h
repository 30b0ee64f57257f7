// What a wrapper does around the call that it forwards.
#pragma once

#include "forward.h"
#include "outer.h"
#include "registry.h"

namespace paceline::nccl {

// Of one thread. NCCL calls some of its own functions by their public names: what it does inside is its own affair.
struct Thread {
  uint32_t inside;
  uint32_t depth;  // of groups
};
Thread& this_thread();

class Inside {
 public:
  explicit Inside(Thread* thread) : thread_(thread) { thread_->inside++; }
  ~Inside() { thread_->inside--; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Thread* thread_;
};

// PACELINE_DISABLED, or a call from within NCCL: forward and nothing else.
bool only_forward(const Thread& thread);

inline bool has_failed(Result result) { return result != kSuccess && result != kInProgress; }

// A collective or a message. `begin_call` is nullptr-safe to end: nullptr where nobody sees the call.
Event* begin_call(const Thread& thread, Handle handle, Stream stream, const ApiCall& what);
void end_call(const Thread& thread, Event* call, Result result);

// All calls of this thread's group are made.
void launch_group();

// What this thread has started in a group ends with it.
void keep_start(int start);
void end_group(Result result, bool launched, const void* caller);

template <class Call>
Result observe(Handle handle, Stream stream, const ApiCall& what, Call call) {
  Thread& thread = this_thread();
  if (only_forward(thread)) return call();
  Event* event = begin_call(thread, handle, stream, what);
  Result result;
  {
    Inside inside(&thread);
    result = call();
  }
  end_call(thread, event, result);
  return result;
}

template <class Call>
Result observe_start(const Start& start, const void* caller, Call call) {
  Thread& thread = this_thread();
  if (only_forward(thread)) return call();
  int place = begin_start(start);
  Result result;
  {
    Inside inside(&thread);
    result = call();
  }
  if (thread.depth > 0 && !has_failed(result)) keep_start(place);
  else end_start(place, result, caller);
  return result;
}

}  // namespace paceline::nccl

#define PACELINE_EXPORT extern "C" __attribute__((visibility("default")))
// The function behind the one that is being defined.
#define PACELINE_FIND(name)                                                                        \
  const void* const caller = __builtin_return_address(0);                                          \
  const auto forward = paceline::nccl::find<paceline::nccl::Function::name>(caller);               \
  if (forward == nullptr) return paceline::nccl::kInvalidUsage
