// A profiler plugin (version 5) that writes down every call it gets: golden traces of NCCL, and a stand-in for NCCL's
// Inspector behind ours. RECORDER_FILE: a line each, THREAD CALL ...; pointers as numbers, descriptors as bytes with
// their texts behind. RECORDER_MASK: the events it asks for, else all that are read here. tests/gpu/traces.py reads it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

namespace {

std::mutex mutex;
long contexts = 0;

FILE* file() {
  static FILE* opened = fopen(getenv("RECORDER_FILE"), "we");
  if (opened == nullptr) abort();
  return opened;
}

long thread() { return syscall(SYS_gettid); }

struct Texts {
  uint64_t type;
  int offsets[4];  // of pointers to text, 0 none
};
constexpr Texts kTexts[] = {{2, {32, 72, 88, 96}}, {4, {24, 40}}, {512, {24, 40}}, {1024, {24, 40}}};

int init(void** context, uint64_t hash, int* mask, const char* name, int nodes, int nranks, int rank, void*) {
  std::lock_guard<std::mutex> guard(mutex);
  const char* asked = getenv("RECORDER_MASK");
  *mask = asked != nullptr ? atoi(asked) : 1 | 2 | 4 | 8 | 16 | 64 | 256 | 512 | 1024 | 2048;
  *context = reinterpret_cast<void*>(++contexts);
  fprintf(file(), "%ld init %ld %lu %d %d %d %s\n", thread(), contexts, hash, nodes, nranks, rank,
          name != nullptr ? name : "-");
  fflush(file());
  return 0;
}

int start(void* context, void** handle, void* descriptor) {
  const auto* bytes = static_cast<const unsigned char*>(descriptor);
  uint64_t type;
  memcpy(&type, bytes, 8);
  *handle = malloc(16);  // never freed: an address is a number for good
  std::lock_guard<std::mutex> guard(mutex);
  fprintf(file(), "%ld start %lu %lu %lu ", thread(), reinterpret_cast<uint64_t>(context), type,
          reinterpret_cast<uint64_t>(*handle));
  for (int i = 0; i < 112; i++) fprintf(file(), "%02x", bytes[i]);
  for (const Texts& texts : kTexts) {
    for (int offset : texts.offsets) {
      if (texts.type != type || offset == 0) continue;
      const char* text;
      memcpy(&text, bytes + offset, sizeof text);
      fprintf(file(), " %d=%s", offset, text != nullptr ? text : "-");
    }
  }
  fprintf(file(), "\n");
  return 0;
}

int record(void* handle, int state, void* arguments) {
  std::lock_guard<std::mutex> guard(mutex);
  uint64_t argument = 0;
  if (arguments != nullptr) memcpy(&argument, arguments, 8);
  fprintf(file(), "%ld record %lu %d ", thread(), reinterpret_cast<uint64_t>(handle), state);
  fprintf(file(), arguments != nullptr ? "%lu\n" : "-\n", argument);
  return 0;
}

int stop(void* handle) {
  std::lock_guard<std::mutex> guard(mutex);
  fprintf(file(), "%ld stop %lu\n", thread(), reinterpret_cast<uint64_t>(handle));
  return 0;
}

int finalize(void* context) {
  std::lock_guard<std::mutex> guard(mutex);
  fprintf(file(), "%ld finalize %lu\n", thread(), reinterpret_cast<uint64_t>(context));
  fflush(file());
  return 0;
}

}  // namespace

extern "C" {

struct Table {
  const char* name;
  int (*init)(void**, uint64_t, int*, const char*, int, int, int, void*);
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*record)(void*, int, void*);
  int (*finalize)(void*);
};

__attribute__((visibility("default"))) Table ncclProfiler_v5 = {"Recorder", init, start, stop, record, finalize};
}
