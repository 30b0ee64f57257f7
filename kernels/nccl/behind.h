// Where the LD_PRELOAD shim is in the process the plugin hands on every call to it: one set of communicators, pages
// and open operations, and both speak NCCL's own interface, so that their builds need not match.
#pragma once

#include "abi.h"

namespace paceline::nccl {

// The shim's side of the interface. It exports nothing but NCCL's functions, so an ELF note of this name and type
// says where this is: eight bytes, the distance from themselves to it.
struct ShimTable {
  uint32_t version;
  uint32_t padding;
  const ProfilerV4* v4;
  const ProfilerV5* v5;
};
constexpr uint32_t kShimTableVersion = 1, kShimNoteType = 1;
constexpr char kShimNoteName[] = "Paceline";

// nullptr where there is no shim; and in the shim itself.
const ShimTable* find_shim();

}  // namespace paceline::nccl
