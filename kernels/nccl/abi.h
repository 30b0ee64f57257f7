// NCCL's profiler plugin interface, versions 4 (2.27) and 5 (2.28 and newer), as it is in memory on 64-bit
// machines. Written from a table of offsets; the asserts below are that table. Version 6 and 7 have the
// layout of 5 in everything that is read here; RCCL takes the same two versions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline::nccl {

using Result = int32_t;
constexpr Result kSuccess = 0;
using LogFunction = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
constexpr int kLogInfo = 3;
constexpr unsigned long kLogInit = 1;

namespace event {
constexpr uint64_t kGroup = 1, kColl = 2, kP2p = 4, kProxyOp = 8, kProxyStep = 16, kKernelCh = 64;
constexpr uint64_t kGroupApi = 256, kCollApi = 512, kP2pApi = 1024, kKernelLaunch = 2048;
constexpr uint64_t kKnownToV4 = 255;
}  // namespace event

namespace state {
constexpr int kSendGpuWait = 8, kSendWait = 9, kRecvWait = 10, kRecvFlushWait = 11, kRecvGpuWait = 12;
constexpr int kSendPeerWait = 20, kKernelStop = 22, kEndApiStart = 24;
}  // namespace state

// `type` is one byte before version 5; see `type_of`.
struct Descriptor {
  uint64_t type;
  void* parent;
  int32_t rank;
  uint32_t padding;
  union {
    struct {
      bool captured;
      int32_t depth;
    } group_api;
    struct {
      const char* function;
      size_t count;
      const char* dtype;
      int32_t root;
      void* stream;
      bool captured;
    } coll_api;
    struct {
      const char* function;
      size_t count;
      const char* dtype;
      void* stream;
      bool captured;
    } p2p_api;
    struct {
      uint64_t sequence;
      const char* function;
      const void* send_buffer;
      void* recv_buffer;
      size_t count;
      int32_t root;
      const char* dtype;
      uint8_t channels;
      uint8_t warps;
      const char* algorithm;
      const char* protocol;
      void* parent_group;  // version 5
    } coll;
    struct {
      const char* function;
      void* buffer;
      const char* dtype;
      size_t count;
      int32_t peer;
      uint8_t channels;  // version 5; garbage where a newer NCCL speaks version 4
      void* parent_group;
    } p2p;
    struct {
      int32_t pid;
      uint8_t channel;
      int32_t peer;
      int32_t steps;
      int32_t chunk_bytes;
      int32_t is_send;
    } proxy_op;
    struct {
      int32_t step;
    } proxy_step;
    struct {
      uint8_t channel;
      uint64_t gpu_ns;
    } kernel;
  };
};
constexpr size_t kDescriptorV4Bytes = 104;

union StateArguments {
  size_t bytes;     // of a proxy step
  uint64_t gpu_ns;  // of a kernel
};

struct ProfilerV4 {
  const char* name;
  Result (*init)(void** context, int* mask, const char* name, uint64_t hash, int nodes, int nranks, int rank,
                 LogFunction log);
  Result (*start)(void* context, void** handle, Descriptor* descriptor);
  Result (*stop)(void* handle);
  Result (*record)(void* handle, int state, StateArguments* arguments);
  Result (*finalize)(void* context);
};

struct ProfilerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t hash, int* mask, const char* name, int nodes, int nranks, int rank,
                 LogFunction log);
  Result (*start)(void* context, void** handle, Descriptor* descriptor);
  Result (*stop)(void* handle);
  Result (*record)(void* handle, int state, StateArguments* arguments);
  Result (*finalize)(void* context);
};

static_assert(sizeof(ProfilerV4) == 48 && sizeof(ProfilerV5) == 48);
static_assert(offsetof(ProfilerV5, init) == 8 && offsetof(ProfilerV5, start) == 16 &&
              offsetof(ProfilerV5, stop) == 24 && offsetof(ProfilerV5, record) == 32 &&
              offsetof(ProfilerV5, finalize) == 40);
static_assert(sizeof(StateArguments) == 8);
static_assert(sizeof(Descriptor) == 112 && offsetof(Descriptor, parent) == 8 && offsetof(Descriptor, rank) == 16);
static_assert(offsetof(Descriptor, group_api.captured) == 24 && offsetof(Descriptor, group_api.depth) == 28);
static_assert(offsetof(Descriptor, coll_api.function) == 24 && offsetof(Descriptor, coll_api.count) == 32 &&
              offsetof(Descriptor, coll_api.dtype) == 40 && offsetof(Descriptor, coll_api.root) == 48 &&
              offsetof(Descriptor, coll_api.stream) == 56 && offsetof(Descriptor, coll_api.captured) == 64);
static_assert(offsetof(Descriptor, p2p_api.stream) == 48 && offsetof(Descriptor, p2p_api.captured) == 56);
static_assert(offsetof(Descriptor, coll.sequence) == 24 && offsetof(Descriptor, coll.function) == 32 &&
              offsetof(Descriptor, coll.count) == 56 && offsetof(Descriptor, coll.root) == 64 &&
              offsetof(Descriptor, coll.dtype) == 72 && offsetof(Descriptor, coll.channels) == 80 &&
              offsetof(Descriptor, coll.warps) == 81 && offsetof(Descriptor, coll.algorithm) == 88 &&
              offsetof(Descriptor, coll.protocol) == 96 && offsetof(Descriptor, coll.parent_group) == 104);
static_assert(offsetof(Descriptor, p2p.function) == 24 && offsetof(Descriptor, p2p.dtype) == 40 &&
              offsetof(Descriptor, p2p.count) == 48 && offsetof(Descriptor, p2p.peer) == 56 &&
              offsetof(Descriptor, p2p.channels) == 60 && offsetof(Descriptor, p2p.parent_group) == 64);
static_assert(offsetof(Descriptor, proxy_op.pid) == 24 && offsetof(Descriptor, proxy_op.channel) == 28 &&
              offsetof(Descriptor, proxy_op.peer) == 32 && offsetof(Descriptor, proxy_op.steps) == 36 &&
              offsetof(Descriptor, proxy_op.chunk_bytes) == 40 && offsetof(Descriptor, proxy_op.is_send) == 44);
static_assert(offsetof(Descriptor, proxy_step.step) == 24);
static_assert(offsetof(Descriptor, kernel.channel) == 24 && offsetof(Descriptor, kernel.gpu_ns) == 32);

inline uint64_t type_of(const Descriptor& descriptor, int version) {
  return version < 5 ? *reinterpret_cast<const uint8_t*>(&descriptor) : descriptor.type;
}

}  // namespace paceline::nccl
