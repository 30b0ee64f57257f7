// `_native.Mapping`: what an agent needs of a page that somebody else writes. Copies are made under
// the page's sequence locks in bounded time; no offset or length ever comes from the page.
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "mapping.h"

namespace paceline {
namespace {

PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"fd", "size", "writable", nullptr};
  int fd, writable;
  Py_ssize_t size;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "inp", const_cast<char**>(names), &fd, &size, &writable)) {
    return nullptr;
  }
  if (size < PACELINE_CONTROL_BYTES + 0 || size % 8 != 0) {
    return PyErr_Format(PyExc_ValueError, "size %zd, expected a page", size);
  }
  struct stat info;
  if (fstat(fd, &info) != 0) return PyErr_SetFromErrno(PyExc_OSError);
  if (info.st_size < static_cast<off_t>(size)) {
    return PyErr_Format(PyExc_ValueError, "size %lld, expected %zd", static_cast<long long>(info.st_size), size);
  }
  void* address = mmap(nullptr, static_cast<size_t>(size), writable ? PROT_READ | PROT_WRITE : PROT_READ,
                       MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (self == nullptr) {
    munmap(address, static_cast<size_t>(size));
    return nullptr;
  }
  MappingObject* mapping = mapping_of(self);
  mapping->address = static_cast<char*>(address);
  mapping->bytes = static_cast<size_t>(size);
  mapping->writable = writable;
  return self;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  unmap(mapping_of(self));
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

bool inside(const MappingObject* mapping, const Range& range) {
  return range.offset % 8 == 0 && range.length % 8 == 0 && range.offset <= mapping->bytes &&
         range.length <= mapping->bytes - range.offset;
}

// copy(lock_offset, offset, length, offset_2, length_2, tries) -> (bytes, consistent)
PyObject* copy(PyObject* self, Arguments arguments, Py_ssize_t count) {
  MappingObject* mapping = mapping_of(self);
  uint64_t values[6];
  if (count != 6) return PyErr_Format(PyExc_TypeError, "copy takes 6 arguments, got %zd", count);
  for (int i = 0; i < 6; i++) {
    if (!to_u64(arguments[i], &values[i])) return PyErr_Format(PyExc_TypeError, "copy takes integers");
  }
  if (mapping->address == nullptr || mapping->closing) return PyErr_Format(PyExc_ValueError, "the mapping is closed");
  Range ranges[2] = {{values[1], values[2]}, {values[3], values[4]}};
  if (!inside(mapping, ranges[0]) || !inside(mapping, ranges[1]) || values[0] % 4 != 0 ||
      values[0] > mapping->bytes - 4) {
    return PyErr_Format(PyExc_ValueError, "range outside the mapping of %zu bytes", mapping->bytes);
  }
  PyObject* bytes =
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(ranges[0].length + ranges[1].length));
  if (bytes == nullptr) return nullptr;
  bool consistent;
  {
    MappingUse use(mapping);
    consistent = copy_locked(mapping, values[0], ranges, PyBytes_AsString(bytes), values[5]);
  }
  return Py_BuildValue("(NO)", bytes, consistent ? Py_True : Py_False);
}

// write_control(detail, pace_ns, pace_expires_ns) -> generation
PyObject* write_control(PyObject* self, Arguments arguments, Py_ssize_t count) {
  MappingObject* mapping = mapping_of(self);
  uint64_t values[3];
  if (count != 3) return PyErr_Format(PyExc_TypeError, "write_control takes 3 arguments, got %zd", count);
  for (int i = 0; i < 3; i++) {
    if (!to_u64(arguments[i], &values[i])) return PyErr_Format(PyExc_TypeError, "write_control takes integers");
  }
  if (mapping->address == nullptr || !mapping->writable) {
    return PyErr_Format(PyExc_ValueError, "the mapping is closed or not writable");
  }
  auto& control = *reinterpret_cast<paceline_control_page_v1*>(mapping->address);
  uint64_t generation = get(control.generation) + 1;
  SequenceWrite write(control.lock);
  put(control.detail, values[0]);
  put(control.pace_ns, values[1]);
  put(control.pace_expires_ns, values[2]);
  put(control.generation, generation);
  put(control.agent_beat_ns, monotonic_ns());
  return PyLong_FromUnsignedLongLong(generation);
}

PyObject* beat(PyObject* self, PyObject*) {
  MappingObject* mapping = mapping_of(self);
  if (mapping->address == nullptr || !mapping->writable) {
    return PyErr_Format(PyExc_ValueError, "the mapping is closed or not writable");
  }
  put(reinterpret_cast<paceline_control_page_v1*>(mapping->address)->agent_beat_ns, monotonic_ns());
  Py_RETURN_NONE;
}

PyObject* close_mapping(PyObject* self, PyObject*) {
  MappingObject* mapping = mapping_of(self);
  mapping->closing = 1;
  if (mapping->users == 0) unmap(mapping);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    fast_method("copy", copy),
    fast_method("read", mapping_read),
    fast_method("write_control", write_control),
    {"beat", beat, METH_NOARGS, nullptr},
    {"close", close_mapping, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {"paceline.probe._native.Mapping", sizeof(MappingObject), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

int add_mapping_type(PyObject* module) {
  PyObject* type = PyType_FromModuleAndSpec(module, &spec, nullptr);
  if (type == nullptr) return -1;
  int error = PyModule_AddObjectRef(module, "Mapping", type);
  Py_DECREF(type);
  return error;
}

}  // namespace paceline
