// What a handle points to, and where handles come from. A handle is given out again only when NCCL is through
// with it and with all its children; of an operation that hangs, or that a CUDA graph holds, never.
#pragma once

#include <atomic>
#include <cstdint>

namespace paceline::nccl {

struct Comm;

enum class Kind : uint8_t {
  kFree,
  kGroupApi,   // v5: one outermost group of API calls, over all communicators; v4: `Group`
  kApi,        // v5: one call of a collective, or of send or receive
  kTask,       // `Coll` or `P2p`: how it is carried out; in v4 also the call
  kKernel,     // one channel of a kernel
  kProxyOp,    // one direction of one channel
  kProxyStep,  // lives inside its ProxyOp
  kOther,      // only a second profiler wants it
};

constexpr uint8_t kCaptured = 1;   // into a CUDA graph: called again and again
constexpr uint8_t kTracked = 2;    // its end will be seen
constexpr uint8_t kReturned = 4;   // the call has returned, everything is launched
constexpr uint8_t kListed = 8;     // open in its communicator
constexpr uint8_t kOver = 16;      // a kernel: its stop was counted; a call of the shim: it has failed
constexpr uint8_t kStopped = 32;   // NCCL has stopped it; it may do so again
constexpr uint8_t kRound = 64;     // an all-to-all made of messages
constexpr uint8_t kMarked = 128;   // the GPU itself will say when it is through

struct Event;

// Members of a group of calls, and what its messages have in common.
struct GroupPart {
  Event* first;      // linked by Event::next_member
  Comm* comm;        // of all messages, nullptr where there are several
  uint64_t count;    // of each message
  uint32_t sends, receives;
  uint32_t events;   // event bits asked for when it began
  void* stream;      // of the first message
  uint8_t dtype;
  bool alike;        // all messages have the same count and type
  bool named;        // NCCL itself calls them all-to-all
};

// What is known of one call.
struct OperationPart {
  int64_t ticket;         // of the page, -1 none
  Event *previous, *next; // open operations of the communicator, in order of entry
  Event* next_member;     // of the same group
  Event* tasks;           // those whose kernels will come, linked by Event::next_task
  Event* owner;           // the all-to-all that this message is a part of
  uint64_t count;
  uint64_t round;         // where it is marked
  std::atomic<uint32_t> expected, stopped;  // channels of kernels
  std::atomic<bool> kernel_seen;
  int32_t peer;             // of a message, as its call says it; -1 where calls do not
  uint8_t function, dtype;
};

struct Event {
  Kind kind;
  uint8_t channel;    // of a kernel
  uint8_t channels;   // of a task
  uint8_t algorithm;  // of a task
  bool outer;         // made by the shim, which ends it; the profiler only takes part
  std::atomic<uint8_t> flags;
  std::atomic<int32_t> holds;   // given back at 0
  Comm* comm;
  Event* parent;   // the operation of a task, the task of a kernel, the group of a call
  void* chained;   // the second profiler's handle
  uint64_t group;  // process-wide number of the group of calls
  Event* next_task;
  union {
    GroupPart members;
    OperationPart operation;
  };
  Event() : operation{} {}
};
static_assert(sizeof(Event) <= 192, "three cache lines");

struct ProxyOp;

// Written by the one proxy thread that works on it.
struct ProxyStep {
  Kind kind;
  uint8_t place;  // inside the ProxyOp
  uint8_t state;
  bool open, posted, arrived;
  int32_t step;
  void* chained;
  uint64_t ready_ns;  // since when only the peer or the network holds it up, 0 = not yet
};

constexpr uint32_t kStepsInFlight = 8;  // NCCL_STEPS

struct ProxyOp {
  Kind kind;
  uint8_t channel;
  uint8_t direction;
  int32_t edge;    // row of the edge table, -1 none
  int32_t filled;  // first step of which waits count: the pipeline has filled by then
  int32_t oldest;  // steps that are through
  Comm* comm;
  Event* parent;
  void* chained;
  std::atomic<bool> open;
  uint64_t passed_ns;  // when the step before was through
  ProxyStep steps[kStepsInFlight];
};

// nullptr where all are in use.
Event* take_event(Kind kind, Comm* comm);
ProxyOp* take_proxy_op(Comm* comm);
void give_proxy_op(ProxyOp* op);
void hold(Event* event);
// Of a handle that NCCL names although it may be through with it: false where it was given back.
bool try_hold(Event* event);
void release(Event* event);

constexpr uint32_t kEventsMax = 32'768;
constexpr uint32_t kProxyOpsMax = 16'384;
uint32_t events_in_use();
uint32_t proxy_ops_in_use();

inline bool has(const Event* event, uint8_t flag) {
  return (event->flags.load(std::memory_order_acquire) & flag) != 0;
}
// False where it was marked before.
inline bool mark(Event* event, uint8_t flag) {
  return (event->flags.fetch_or(flag, std::memory_order_acq_rel) & flag) == 0;
}
inline void unmark(Event* event, uint8_t flag) {
  event->flags.fetch_and(static_cast<uint8_t>(~flag), std::memory_order_acq_rel);
}

}  // namespace paceline::nccl
