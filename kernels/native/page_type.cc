// `_native.Page`: one call of the C ABI per method. Only construction raises; everything later
// counts an error in the page header and returns -1 or None.
#include <errno.h>

#include "module.h"
#include "paceline/page_v1.h"

namespace paceline {
namespace {

paceline_page_v1* page_of(PyObject* self) { return page_of_object(self); }

PyObject* none_with_error(PyObject* self) {
  paceline_page_count_error_v1(page_of(self));
  Py_RETURN_NONE;
}

PyObject* minus_one_with_error(PyObject* self) {
  paceline_page_count_error_v1(page_of(self));
  return PyLong_FromLong(-1);
}

PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"job", "attempt", "global_rank", "world_size", "local_rank", "framework", nullptr};
  paceline_identity_v1 identity{};
  const char* framework = nullptr;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "ssiiis", const_cast<char**>(names), &identity.job,
                                   &identity.attempt, &identity.global_rank, &identity.world_size,
                                   &identity.local_rank, &framework)) {
    return nullptr;
  }
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (self == nullptr) return nullptr;
  int error = paceline_page_create_v1(&identity, framework, &reinterpret_cast<PageObject*>(self)->page);
  if (error != 0) {
    Py_DECREF(self);
    errno = -error;
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  return self;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (page_of(self) != nullptr) paceline_page_destroy_v1(page_of(self));
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* open_communicator(PyObject* self, Arguments arguments, Py_ssize_t count) {
  uint64_t values[6];
  if (count != 6) return minus_one_with_error(self);
  for (int i = 0; i < 6; i++) {
    if (!to_u64(arguments[i], &values[i])) return minus_one_with_error(self);
  }
  paceline_communicator_v1 opened{values[0],
                                  static_cast<uint32_t>(values[1]),
                                  static_cast<uint32_t>(values[2]),
                                  static_cast<uint32_t>(values[3]),
                                  static_cast<uint32_t>(values[4]),
                                  static_cast<uint32_t>(values[5])};
  return PyLong_FromLong(paceline_open_communicator_v1(page_of(self), &opened));
}

PyObject* close_communicator(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t slot;
  if (count != 1 || !to_i64(arguments[0], &slot)) return none_with_error(self);
  paceline_close_communicator_v1(page_of(self), slot < 0 || slot > 63 ? -1 : static_cast<int>(slot));
  Py_RETURN_NONE;
}

PyObject* add_flags(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t slot;
  uint64_t flags;
  if (count != 2 || !to_i64(arguments[0], &slot) || !to_u64(arguments[1], &flags)) return none_with_error(self);
  paceline_add_flags_v1(page_of(self), slot < 0 || slot > 63 ? -1 : static_cast<int>(slot),
                        static_cast<uint32_t>(flags));
  Py_RETURN_NONE;
}

PyObject* enter(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t slot, function, dtype, reduce_op, peer;
  paceline_operation_v1 operation{};
  if (count != 8 || !to_i64(arguments[0], &slot) || !to_i64(arguments[1], &function) ||
      !to_i64(arguments[2], &dtype) || !to_i64(arguments[3], &reduce_op) || !to_i64(arguments[4], &peer) ||
      !to_u64(arguments[5], &operation.count) || !to_u64(arguments[6], &operation.bytes) ||
      !to_u64(arguments[7], &operation.signature_count)) {
    return minus_one_with_error(self);
  }
  operation.function = static_cast<uint8_t>(function);
  operation.dtype = static_cast<uint8_t>(dtype);
  operation.reduce_op = static_cast<uint8_t>(reduce_op);
  operation.peer = static_cast<int32_t>(peer);
  int index = slot < 0 || slot > 63 ? -1 : static_cast<int>(slot);
  return PyLong_FromLongLong(paceline_enter_v1(page_of(self), index, &operation));
}

PyObject* returned(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t ticket;
  if (count != 1 || !to_i64(arguments[0], &ticket)) return none_with_error(self);
  paceline_returned_v1(page_of(self), ticket);
  Py_RETURN_NONE;
}

PyObject* complete(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t ticket, failed = 0;
  if (count < 1 || count > 2 || !to_i64(arguments[0], &ticket)) return none_with_error(self);
  if (count == 2 && !to_i64(arguments[1], &failed)) return none_with_error(self);
  paceline_complete_v1(page_of(self), ticket, failed != 0);
  Py_RETURN_NONE;
}

// settler(ticket, followed): followed[ticket] = True and a callable that undoes it when torch reports the end
PyObject* settler(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t ticket;
  if (count != 2 || !to_i64(arguments[0], &ticket) || !PyDict_Check(arguments[1])) {
    return PyErr_Format(PyExc_TypeError, "settler takes a ticket and a dict");
  }
  PyObject* made = make_settler(self, arguments[0], arguments[1]);
  if (made == nullptr) return nullptr;
  if (PyDict_SetItem(arguments[1], arguments[0], Py_True) == 0) return made;
  Py_DECREF(made);
  return nullptr;
}

// A str cut at its first NUL; "" where it is no str.
struct Text {
  explicit Text(PyObject* object) : bytes(PyUnicode_AsEncodedString(object, "utf-8", "replace")) {
    if (bytes == nullptr) PyErr_Clear();
  }
  ~Text() { Py_XDECREF(bytes); }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  const char* get() const { return bytes == nullptr ? "" : PyBytes_AsString(bytes); }
  PyObject* bytes;
};

PyObject* set_identity(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t ranks[3];
  if (count != 5) return none_with_error(self);
  for (int i = 0; i < 3; i++) {
    if (!to_i64(arguments[2 + i], &ranks[i])) return none_with_error(self);
  }
  Text job(arguments[0]), attempt(arguments[1]);
  paceline_identity_v1 identity{job.get(), attempt.get(), static_cast<int32_t>(ranks[0]),
                                static_cast<int32_t>(ranks[1]), static_cast<int32_t>(ranks[2])};
  paceline_page_set_identity_v1(page_of(self), &identity);
  Py_RETURN_NONE;
}

PyObject* set_phase(PyObject* self, Arguments arguments, Py_ssize_t count) {
  uint64_t phase;
  if (count != 2 || !to_u64(arguments[0], &phase)) return none_with_error(self);
  Text name(arguments[1]);
  paceline_page_set_phase_v1(page_of(self), static_cast<uint32_t>(phase), name.get());
  Py_RETURN_NONE;
}

PyObject* set_host_wait(PyObject* self, Arguments arguments, Py_ssize_t count) {
  uint64_t kind;
  int64_t rank;
  if (count != 3 || !to_u64(arguments[0], &kind) || !to_i64(arguments[2], &rank)) return none_with_error(self);
  Text name(arguments[1]);
  paceline_page_set_host_wait_v1(page_of(self), static_cast<uint32_t>(kind), name.get(),
                                 static_cast<int32_t>(rank));
  Py_RETURN_NONE;
}

PyObject* set_step(PyObject* self, Arguments arguments, Py_ssize_t count) {
  uint64_t step;
  if (count != 1 || !to_u64(arguments[0], &step)) return none_with_error(self);
  paceline_page_set_step_v1(page_of(self), step);
  Py_RETURN_NONE;
}

PyObject* add_paced(PyObject* self, Arguments arguments, Py_ssize_t count) {
  uint64_t paced_ns;
  if (count != 1 || !to_u64(arguments[0], &paced_ns)) return none_with_error(self);
  paceline_page_add_paced_v1(page_of(self), paced_ns);
  Py_RETURN_NONE;
}

PyObject* beat(PyObject* self, PyObject*) {
  paceline_page_beat_v1(page_of(self));
  Py_RETURN_NONE;
}

PyObject* count_error(PyObject* self, PyObject*) { return none_with_error(self); }

PyObject* finish(PyObject* self, PyObject*) {
  paceline_page_finish_v1(page_of(self));
  Py_RETURN_NONE;
}

PyObject* close_page(PyObject* self, PyObject*) {
  paceline_page_close_v1(page_of(self));
  Py_RETURN_NONE;
}

PyObject* read_control(PyObject* self, PyObject*) {
  paceline_control_page_v1 control;
  if (!paceline_page_read_control_v1(page_of(self), &control)) paceline_page_count_error_v1(page_of(self));
  return Py_BuildValue("(IKKK)", control.detail, static_cast<unsigned long long>(control.pace_ns),
                       static_cast<unsigned long long>(control.pace_expires_ns),
                       static_cast<unsigned long long>(control.generation));
}

PyObject* get_page_fd(PyObject* self, void*) { return PyLong_FromLong(paceline_page_fd_v1(page_of(self))); }
PyObject* get_control_fd(PyObject* self, void*) { return PyLong_FromLong(paceline_control_fd_v1(page_of(self))); }
PyObject* get_active(PyObject* self, void*) { return PyBool_FromLong(paceline_page_active_v1(page_of(self))); }

PyObject* get_address(PyObject* self, void*) {
  paceline_page_v1* page = page_of(self);
  bool mapped = paceline_page_active_v1(page) != 0;
  return PyLong_FromUnsignedLongLong(mapped ? reinterpret_cast<uintptr_t>(paceline_page_address_v1(page)) : 0);
}

PyMethodDef methods[] = {
    fast_method("open_communicator", open_communicator),
    fast_method("close_communicator", close_communicator),
    fast_method("add_flags", add_flags),
    fast_method("enter", enter),
    fast_method("returned", returned),
    fast_method("complete", complete),
    fast_method("settler", settler),
    fast_method("describe", page_describe),
    fast_method("progress", page_progress),
    fast_method("set_identity", set_identity),
    fast_method("set_phase", set_phase),
    fast_method("set_host_wait", set_host_wait),
    fast_method("set_step", set_step),
    fast_method("add_paced", add_paced),
    {"beat", beat, METH_NOARGS, nullptr},
    {"count_error", count_error, METH_NOARGS, nullptr},
    {"finish", finish, METH_NOARGS, nullptr},
    {"close", close_page, METH_NOARGS, nullptr},
    {"read_control", read_control, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef properties[] = {
    {"page_fd", get_page_fd, nullptr, nullptr, nullptr},
    {"control_fd", get_control_fd, nullptr, nullptr, nullptr},
    {"active", get_active, nullptr, nullptr, nullptr},
    {"address", get_address, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, nullptr},
};

PyType_Spec spec = {"paceline.probe._native.Page", sizeof(PageObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

}  // namespace

int add_page_type(PyObject* module) {
  PyObject* type = PyType_FromModuleAndSpec(module, &spec, nullptr);
  if (type == nullptr) return -1;
  int error = PyModule_AddObjectRef(module, "Page", type);
  Py_DECREF(type);
  return error;
}

}  // namespace paceline
