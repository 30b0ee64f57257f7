// NCCL's public API as far as it is wrapped, written from its documentation; no header of NCCL is needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"

namespace paceline::nccl {

using Handle = void*;  // ncclComm_t
using Stream = void*;  // cudaStream_t
using Config = void;   // ncclConfig_t; only handed on
struct UniqueId {
  char bytes[128];
};
static_assert(sizeof(UniqueId) == 128);

constexpr Result kInvalidUsage = 5, kInProgress = 7;

// Every function that the library exports: name, and its parameters. exports.map lists the same.
#define PACELINE_NCCL_FUNCTIONS(X)                                                                                  \
  X(ncclGetVersion, (int*))                                                                                         \
  X(ncclGetUniqueId, (UniqueId*))                                                                                   \
  X(ncclCommInitRank, (Handle*, int, UniqueId, int))                                                                \
  X(ncclCommInitRankConfig, (Handle*, int, UniqueId, int, Config*))                                                 \
  X(ncclCommInitRankScalable, (Handle*, int, int, int, UniqueId*, Config*))                                         \
  X(ncclCommInitAll, (Handle*, int, const int*))                                                                    \
  X(ncclCommSplit, (Handle, int, int, Handle*, Config*))                                                            \
  X(ncclCommShrink, (Handle, int*, int, Handle*, Config*, int))                                                     \
  X(ncclCommGrow, (Handle, int, const UniqueId*, int, Handle*, Config*))                                            \
  X(ncclCommFinalize, (Handle))                                                                                     \
  X(ncclCommDestroy, (Handle))                                                                                      \
  X(ncclCommAbort, (Handle))                                                                                        \
  X(ncclCommGetAsyncError, (Handle, Result*))                                                                       \
  X(ncclGroupStart, ())                                                                                             \
  X(ncclGroupEnd, ())                                                                                               \
  X(ncclGroupSimulateEnd, (void*))                                                                                  \
  X(ncclAllReduce, (const void*, void*, size_t, int, int, Handle, Stream))                                          \
  X(ncclBroadcast, (const void*, void*, size_t, int, int, Handle, Stream))                                          \
  X(ncclBcast, (void*, size_t, int, int, Handle, Stream))                                                           \
  X(ncclReduce, (const void*, void*, size_t, int, int, int, Handle, Stream))                                        \
  X(ncclAllGather, (const void*, void*, size_t, int, Handle, Stream))                                               \
  X(ncclReduceScatter, (const void*, void*, size_t, int, int, Handle, Stream))                                      \
  X(ncclAlltoAll, (const void*, void*, size_t, int, Handle, Stream))                                                \
  X(ncclGather, (const void*, void*, size_t, int, int, Handle, Stream))                                             \
  X(ncclScatter, (const void*, void*, size_t, int, int, Handle, Stream))                                            \
  X(ncclSend, (const void*, size_t, int, int, Handle, Stream))                                                      \
  X(ncclRecv, (void*, size_t, int, int, Handle, Stream))

// Only asked, of NCCL itself.
using CommNumber = Result (*)(Handle, int*);

}  // namespace paceline::nccl
