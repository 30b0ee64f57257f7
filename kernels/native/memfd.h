// Sealed shared memory that is handed over as a file descriptor.
#pragma once

#include <cstddef>

namespace paceline {

struct Mapping {
  void* address = nullptr;
  size_t bytes = 0;
  int fd = -1;
};

// A zeroed memfd of `bytes` that can neither shrink nor grow, mapped writable. `fd` is a read-only
// reopening; nobody can map it writable again where the kernel has F_SEAL_FUTURE_WRITE (5.1).
// 0, else a negative errno and nothing left open.
int create_page_memfd(const char* name, size_t bytes, Mapping* mapping);

// The same with a writable `fd`, holding `content` and mapped read-only.
int create_control_memfd(const char* name, const void* content, size_t bytes, Mapping* mapping);

void release(Mapping* mapping);

}  // namespace paceline
