// `_native.Page`: progress inside an operation. As everywhere, wrong arguments are counted, not raised.
#include "module.h"

namespace paceline {
namespace {

PyObject* none_with_error(PyObject* self) {
  paceline_page_count_error_v1(page_of_object(self));
  Py_RETURN_NONE;
}

constexpr int kArguments = 12;
constexpr int kByteArguments[] = {3, 4, 5, 11};  // group, channel, peer_slot, state

bool fits(int64_t value, int64_t most) { return value >= 0 && value <= most; }

}  // namespace

PyObject* page_progress(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t values[kArguments];
  if (count != kArguments) return none_with_error(self);
  for (int i = 0; i < kArguments; i++) {
    if (!to_i64(arguments[i], &values[i]) || values[i] < 0) return none_with_error(self);
  }
  if (!fits(values[0], 63) || !fits(values[1], 1) || !fits(values[2], INT32_MAX)) return none_with_error(self);
  for (int i : kByteArguments) {
    if (!fits(values[i], UINT8_MAX)) return none_with_error(self);
  }
  if (!fits(values[6], UINT32_MAX) || !fits(values[7], UINT32_MAX)) return none_with_error(self);
  paceline_advance_v1 advance{};
  advance.direction = static_cast<uint8_t>(values[1]);
  advance.peer = static_cast<int32_t>(values[2]);
  advance.group = static_cast<uint8_t>(values[3]);
  advance.channel = static_cast<uint8_t>(values[4]);
  advance.peer_slot = static_cast<uint8_t>(values[5]);
  advance.posted = static_cast<uint32_t>(values[6]);
  advance.count = static_cast<uint32_t>(values[7]);
  advance.bytes = static_cast<uint64_t>(values[8]);
  advance.wait_ns = static_cast<uint64_t>(values[9]);
  advance.early_wait_ns = static_cast<uint64_t>(values[10]);
  advance.state = static_cast<uint8_t>(values[11]);
  paceline_progress_v1(page_of_object(self), static_cast<int>(values[0]), &advance);
  Py_RETURN_NONE;
}

PyObject* page_describe(PyObject* self, Arguments arguments, Py_ssize_t count) {
  int64_t ticket, values[3];
  if (count != 4 || !to_i64(arguments[0], &ticket)) return none_with_error(self);
  for (int i = 0; i < 3; i++) {
    if (!to_i64(arguments[i + 1], &values[i]) || !fits(values[i], UINT8_MAX)) return none_with_error(self);
  }
  paceline_describe_v1(page_of_object(self), ticket, static_cast<uint8_t>(values[0]),
                       static_cast<uint8_t>(values[1]), static_cast<uint8_t>(values[2]));
  Py_RETURN_NONE;
}

}  // namespace paceline
