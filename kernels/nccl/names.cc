#include "names.h"

#include <string.h>

#include "paceline/probe_v1.h"

namespace paceline::nccl {
namespace {

struct Name {
  const char* text;
  uint8_t code;
};

template <uint32_t kCount>
uint8_t find(const Name (&names)[kCount], const char* text) {
  if (text == nullptr) return 0;
  for (const Name& name : names) {
    if (strcmp(name.text, text) == 0) return name.code;
  }
  return 0;
}

constexpr Name kFunctions[] = {
    {"AllReduce", PACELINE_FUNCTION_ALL_REDUCE},   {"AllGather", PACELINE_FUNCTION_ALL_GATHER},
    {"ReduceScatter", PACELINE_FUNCTION_REDUCE_SCATTER}, {"Send", PACELINE_FUNCTION_SEND},
    {"Recv", PACELINE_FUNCTION_RECV},              {"Broadcast", PACELINE_FUNCTION_BROADCAST},
    {"Reduce", PACELINE_FUNCTION_REDUCE},          {"AlltoAll", PACELINE_FUNCTION_ALL_TO_ALL},
    {"Gather", PACELINE_FUNCTION_GATHER},          {"Scatter", PACELINE_FUNCTION_SCATTER},
};

// The pages have no unsigned 32- and 64-bit types: the signed ones have the same size.
constexpr Name kTypes[] = {
    {"ncclBfloat16", PACELINE_DTYPE_BFLOAT16},      {"ncclFloat32", PACELINE_DTYPE_FLOAT32},
    {"ncclFloat16", PACELINE_DTYPE_FLOAT16},        {"ncclInt8", PACELINE_DTYPE_INT8},
    {"ncclUint8", PACELINE_DTYPE_UINT8},            {"ncclInt32", PACELINE_DTYPE_INT32},
    {"ncclUint32", PACELINE_DTYPE_INT32},           {"ncclInt64", PACELINE_DTYPE_INT64},
    {"ncclUint64", PACELINE_DTYPE_INT64},           {"ncclFloat64", PACELINE_DTYPE_FLOAT64},
    {"ncclFloat8e4m3", PACELINE_DTYPE_FLOAT8_E4M3}, {"ncclFloat8e5m2", PACELINE_DTYPE_FLOAT8_E5M2},
};

constexpr Name kAlgorithms[] = {
    {"RING", PACELINE_ALGORITHM_RING},
    {"TREE", PACELINE_ALGORITHM_TREE},
    {"NVLS", PACELINE_ALGORITHM_NVLS},
    {"NVLS_TREE", PACELINE_ALGORITHM_NVLS},
    {"PAT", PACELINE_ALGORITHM_PAT},
    {"COLLNET_DIRECT", PACELINE_ALGORITHM_COLLNET},
    {"COLLNET_CHAIN", PACELINE_ALGORITHM_COLLNET},
};

constexpr Name kProtocols[] = {
    {"SIMPLE", PACELINE_PROTOCOL_SIMPLE},
    {"LL", PACELINE_PROTOCOL_LL},
    {"LL128", PACELINE_PROTOCOL_LL128},
};

}  // namespace

uint8_t function_code(const char* name) { return find(kFunctions, name); }
uint8_t dtype_code(const char* name) { return find(kTypes, name); }
uint8_t algorithm_code(const char* name) { return find(kAlgorithms, name); }
uint8_t protocol_code(const char* name) { return find(kProtocols, name); }

uint32_t dtype_bytes(uint8_t dtype) {
  switch (dtype) {
    case PACELINE_DTYPE_FLOAT64:
    case PACELINE_DTYPE_INT64:
      return 8;
    case PACELINE_DTYPE_FLOAT32:
    case PACELINE_DTYPE_INT32:
      return 4;
    case PACELINE_DTYPE_FLOAT16:
    case PACELINE_DTYPE_BFLOAT16:
      return 2;
    default:
      return 1;
  }
}

bool has_root(uint8_t function) {
  return function == PACELINE_FUNCTION_BROADCAST || function == PACELINE_FUNCTION_REDUCE ||
         function == PACELINE_FUNCTION_GATHER || function == PACELINE_FUNCTION_SCATTER;
}

// NCCL has no uneven collectives: those of torch are groups of messages or of broadcasts.
bool counts_agree(uint8_t function) { return function != PACELINE_FUNCTION_UNKNOWN; }

bool is_all_to_all(const char* name) { return name != nullptr && strcmp(name, "AlltoAll") == 0; }

}  // namespace paceline::nccl
