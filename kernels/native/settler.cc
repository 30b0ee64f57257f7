// `_native.Settler`: what torch calls when an operation ends. It runs on a thread of the backend with
// cold caches, beside training, so it is one native call and not a Python function.
#include "module.h"
#include "paceline/page_v1.h"

namespace paceline {
namespace {

struct SettlerObject {
  PyObject_HEAD
  PyObject* page;      // keeps the page alive
  PyObject* followed;  // dict of tickets whose end is awaited
  PyObject* ticket;
};

SettlerObject* settler_of(PyObject* self) { return reinterpret_cast<SettlerObject*>(self); }

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  SettlerObject* settler = settler_of(self);
  Py_XDECREF(settler->page);
  Py_XDECREF(settler->followed);
  Py_XDECREF(settler->ticket);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// `value()` of a torch future raises what the operation raised.
bool has_failed(PyObject* future) {
  PyObject* value = PyObject_CallMethod(future, "value", nullptr);
  if (value == nullptr) {
    PyErr_Clear();
    return true;
  }
  Py_DECREF(value);
  return false;
}

PyObject* call(PyObject* self, PyObject* arguments, PyObject*) {
  SettlerObject* settler = settler_of(self);
  paceline_page_v1* page = page_of_object(settler->page);
  int64_t ticket = -1;
  if (PyTuple_Size(arguments) != 1 || !to_i64(settler->ticket, &ticket)) {
    paceline_page_count_error_v1(page);
    Py_RETURN_NONE;
  }
  paceline_complete_v1(page, ticket, has_failed(PyTuple_GetItem(arguments, 0)));
  if (PyDict_DelItem(settler->followed, settler->ticket) != 0) PyErr_Clear();  // reported twice
  Py_RETURN_NONE;
}

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {0, nullptr},
};

PyType_Spec spec = {"paceline.probe._native.Settler", sizeof(SettlerObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyTypeObject* settler_type = nullptr;  // one per process: the module has no state of its own

}  // namespace

PyObject* make_settler(PyObject* page, PyObject* ticket, PyObject* followed) {
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(settler_type, Py_tp_alloc));
  PyObject* self = allocate(settler_type, 0);
  if (self == nullptr) return nullptr;
  SettlerObject* settler = settler_of(self);
  settler->page = Py_NewRef(page);
  settler->followed = Py_NewRef(followed);
  settler->ticket = Py_NewRef(ticket);
  return self;
}

int add_settler_type(PyObject* module) {
  PyObject* type = PyType_FromModuleAndSpec(module, &spec, nullptr);
  if (type == nullptr) return -1;
  int error = PyModule_AddObjectRef(module, "Settler", type);
  if (settler_type == nullptr) {
    settler_type = reinterpret_cast<PyTypeObject*>(type);
  } else {
    Py_DECREF(type);
  }
  return error;
}

}  // namespace paceline
