#pragma once

#include "abi.h"

namespace paceline::nccl {

// For example 22809, 0 where it cannot be found; asks the library that holds `log`, which may be nullptr.
uint32_t nccl_version(LogFunction log);

}  // namespace paceline::nccl
