// A mapped page of somebody else, and copies of its blocks under their sequence locks.
#pragma once

#include <sys/mman.h>
#include <time.h>

#include "atomics.h"
#include "module.h"
#include "paceline/probe_v1.h"

namespace paceline {

struct MappingObject {
  PyObject_HEAD
  char* address;
  size_t bytes;
  int writable;
  int users;  // copies under way; they release the GIL while they sleep
  int closing;
};

struct Range {
  uint64_t offset, length;
};

inline MappingObject* mapping_of(PyObject* self) { return reinterpret_cast<MappingObject*>(self); }

inline void unmap(MappingObject* mapping) {
  if (mapping->address != nullptr) munmap(mapping->address, mapping->bytes);
  mapping->address = nullptr;
}

// Keeps the mapping where it is while its content is copied.
class MappingUse {
 public:
  explicit MappingUse(MappingObject* mapping) : mapping_(mapping) { mapping_->users++; }
  ~MappingUse() {
    if (--mapping_->users == 0 && mapping_->closing) unmap(mapping_);
  }
  MappingUse(const MappingUse&) = delete;
  MappingUse& operator=(const MappingUse&) = delete;

 private:
  MappingObject* mapping_;
};

// One consistent copy, or the last torn one when `tries` are used up.
bool copy_locked(const MappingObject* mapping, uint64_t lock_offset, const Range (&ranges)[2], char* target,
                 uint64_t tries);

// Method of `Mapping` in a file of its own (page_read.cc).
PyObject* mapping_read(PyObject* self, Arguments arguments, Py_ssize_t count);

}  // namespace paceline
