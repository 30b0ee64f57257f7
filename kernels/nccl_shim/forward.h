// The functions behind the wrapped ones, as the caller would have got them without this library.
#pragma once

#include "api.h"

namespace paceline::nccl {

enum class Function : uint32_t {
#define PACELINE_ID(name, parameters) name,
  PACELINE_NCCL_FUNCTIONS(PACELINE_ID)
#undef PACELINE_ID
  ncclCommCount, ncclCommUserRank, kCount,
};

template <Function>
struct Signature;
#define PACELINE_SIGNATURE(name, parameters)   \
  template <>                                  \
  struct Signature<Function::name> {           \
    using Pointer = Result(*) parameters;      \
  };
PACELINE_NCCL_FUNCTIONS(PACELINE_SIGNATURE)
#undef PACELINE_SIGNATURE
template <>
struct Signature<Function::ncclCommCount> {
  using Pointer = CommNumber;
};
template <>
struct Signature<Function::ncclCommUserRank> {
  using Pointer = CommNumber;
};

// `caller`: an address in the code that calls. nullptr, said once on stderr, where no NCCL has the function.
void* find_function(Function function, const void* caller);

template <Function kFunction>
typename Signature<kFunction>::Pointer find(const void* caller) {
  return reinterpret_cast<typename Signature<kFunction>::Pointer>(find_function(kFunction, caller));
}

}  // namespace paceline::nccl
