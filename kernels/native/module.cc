// `paceline.probe._native`, built against the stable ABI of Python 3.10.
#include "module.h"
#include "paceline/page_v1.h"

namespace paceline {
namespace {

PyObject* mix64(PyObject*, PyObject* object) {
  uint64_t value;
  if (!to_u64(object, &value)) return PyErr_Format(PyExc_TypeError, "mix64 takes an integer");
  return PyLong_FromUnsignedLongLong(paceline_mix64_v1(value));
}

// signature(function, dtype, reduce_op, peer, signature_count)
PyObject* signature(PyObject*, Arguments arguments, Py_ssize_t count) {
  uint64_t values[5];
  if (count != 5) return PyErr_Format(PyExc_TypeError, "signature takes 5 arguments, got %zd", count);
  for (int i = 0; i < 5; i++) {
    if (!to_u64(arguments[i], &values[i])) return PyErr_Format(PyExc_TypeError, "signature takes integers");
  }
  paceline_operation_v1 operation{};
  operation.function = static_cast<uint8_t>(values[0]);
  operation.dtype = static_cast<uint8_t>(values[1]);
  operation.reduce_op = static_cast<uint8_t>(values[2]);
  operation.peer = static_cast<int32_t>(values[3]);
  operation.signature_count = values[4];
  return PyLong_FromUnsignedLongLong(paceline_signature_v1(&operation));
}

int execute(PyObject* module) {
  if (add_page_type(module) != 0 || add_mapping_type(module) != 0 || add_settler_type(module) != 0) return -1;
  if (add_intake(module) != 0 || add_checksums(module) != 0 || add_reduction(module) != 0) return -1;
  return PyModule_AddIntConstant(module, "OPEN_OPS_MAX", PACELINE_OPEN_OPS_MAX);
}

PyMethodDef functions[] = {
    {"mix64", mix64, METH_O, nullptr},
    fast_method("signature", signature),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(execute)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "paceline.probe._native", nullptr, 0, functions, slots, nullptr, nullptr, nullptr,
};

}  // namespace
}  // namespace paceline

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__native(void) {
  return PyModuleDef_Init(&paceline::definition);
}
