// NCCL's names as the codes of the pages.
#pragma once

#include <cstdint>

namespace paceline::nccl {

// 0 for nullptr and for names that are not known.
uint8_t function_code(const char* name);
uint8_t dtype_code(const char* name);
uint8_t algorithm_code(const char* name);
uint8_t protocol_code(const char* name);
uint32_t dtype_bytes(uint8_t dtype);
// Whether all members name the same root.
bool has_root(uint8_t function);
// Whether all members must agree on the count.
bool counts_agree(uint8_t function);
bool is_all_to_all(const char* name);

}  // namespace paceline::nccl
