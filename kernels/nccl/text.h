// Text of bounded length without allocation: what does not fit is cut.
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cstddef>

namespace paceline::nccl {

template <size_t kBytes>
class Text {
 public:
  const char* get() const { return bytes_; }
  size_t size() const { return size_; }
  bool is_cut() const { return cut_; }

  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(bytes_ + size_, kBytes - size_, format, arguments);
    va_end(arguments);
    size_t wanted = written > 0 ? static_cast<size_t>(written) : 0;
    cut_ |= size_ + wanted >= kBytes;
    size_ = cut_ ? kBytes - 1 : size_ + wanted;
  }

  // As the inside of a JSON string; what is not ASCII travels as it is.
  void add_json(const char* text) {
    for (; *text != '\0'; text++) {
      auto byte = static_cast<unsigned char>(*text);
      if (byte == '"' || byte == '\\') add("\\%c", byte);
      else if (byte < 0x20) add("_");
      else add("%c", byte);
    }
  }

 private:
  char bytes_[kBytes] = {};
  size_t size_ = 0;
  bool cut_ = false;
};

}  // namespace paceline::nccl
