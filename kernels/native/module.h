// The Python side of the probe: `paceline.probe._native` (docs/adr/0007-native-binding.md).
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "paceline/page_v1.h"

namespace paceline {

using Arguments = PyObject* const*;

// Conversions that never leave an exception behind: false where `object` is no int.
inline bool to_u64(PyObject* object, uint64_t* value) {
  *value = PyLong_AsUnsignedLongLongMask(object);
  if (*value != UINT64_MAX || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

inline bool to_i64(PyObject* object, int64_t* value) {
  *value = PyLong_AsLongLong(object);
  if (*value != -1 || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

// The next argument, an address or a number.
class Reader {
 public:
  Reader(Arguments arguments, Py_ssize_t count) : arguments_(arguments), left_(count) {}

  uint64_t number() {
    uint64_t value = 0;
    if (left_ <= 0 || !to_u64(*arguments_, &value)) ok_ = false;
    arguments_++;
    left_--;
    return value;
  }

  template <class T>
  T* array() {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(number()));
  }

  bool complete() const { return ok_ && left_ == 0; }

 private:
  Arguments arguments_;
  Py_ssize_t left_;
  bool ok_ = true;
};

template <class F>
PyMethodDef fast_method(const char* name, F* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

int add_page_type(PyObject* module);
int add_mapping_type(PyObject* module);
int add_settler_type(PyObject* module);
int add_intake(PyObject* module);
int add_checksums(PyObject* module);
int add_reduction(PyObject* module);

struct PageObject {
  PyObject_HEAD
  paceline_page_v1* page;
};

inline paceline_page_v1* page_of_object(PyObject* object) { return reinterpret_cast<PageObject*>(object)->page; }
// Methods of `Page` in a file of their own (page_progress.cc).
PyObject* page_progress(PyObject* page, Arguments arguments, Py_ssize_t count);
PyObject* page_describe(PyObject* page, Arguments arguments, Py_ssize_t count);
// A callable for `future.add_done_callback`: completes `ticket` and takes it out of `followed`.
PyObject* make_settler(PyObject* page, PyObject* ticket, PyObject* followed);

}  // namespace paceline
