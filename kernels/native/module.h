// The Python side of the probe: `paceline.probe._native` (docs/adr/0007-native-binding.md).
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

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

template <class F>
PyMethodDef fast_method(const char* name, F* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

int add_page_type(PyObject* module);
int add_mapping_type(PyObject* module);

}  // namespace paceline
