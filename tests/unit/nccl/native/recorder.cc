// A second profiler that writes down what it is called with: a stand-in for NCCL's Inspector, and the recorder of
// golden traces. RECORDER_FILE names its file, RECORDER_MASK the events it asks for.
//   init VERSION HASH NRANKS RANK | start TYPE HANDLE PARENT | record HANDLE STATE | stop HANDLE | finalize
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <mutex>

namespace {

std::mutex mutex;
std::map<void*, long> numbers;  // handles are numbers in the file
long last = 0;

FILE* file() {
  static FILE* opened = fopen(getenv("RECORDER_FILE"), "we");
  return opened;
}

long number_of(void* handle) {
  if (handle == nullptr) return 0;
  auto found = numbers.find(handle);
  return found == numbers.end() ? -1 : found->second;
}

int init(void** context, uint64_t hash, int* mask, const char*, int, int nranks, int rank, void*) {
  std::lock_guard<std::mutex> guard(mutex);
  *mask = atoi(getenv("RECORDER_MASK"));
  *context = &numbers;
  fprintf(file(), "init 5 %lu %d %d\n", hash, nranks, rank);
  return 0;
}

int start(void* context, void** handle, void* descriptor) {
  std::lock_guard<std::mutex> guard(mutex);
  uint64_t type;
  void* parent;
  memcpy(&type, descriptor, 8);
  memcpy(&parent, static_cast<char*>(descriptor) + 8, 8);
  *handle = malloc(16);
  numbers[*handle] = ++last;
  fprintf(file(), "start %lu %ld %ld%s\n", type, last, number_of(parent),
          context == &numbers && number_of(parent) >= 0 ? "" : " unknown");
  return 0;
}

int record(void* handle, int state, void*) {
  std::lock_guard<std::mutex> guard(mutex);
  fprintf(file(), "record %ld %d%s\n", number_of(handle), state, number_of(handle) > 0 ? "" : " unknown");
  return 0;
}

int stop(void* handle) {
  std::lock_guard<std::mutex> guard(mutex);
  fprintf(file(), "stop %ld%s\n", number_of(handle), number_of(handle) > 0 ? "" : " unknown");
  return 0;  // never freed: a handle is a number for good
}

int finalize(void* context) {
  std::lock_guard<std::mutex> guard(mutex);
  fprintf(file(), context == &numbers ? "finalize\n" : "finalize unknown\n");
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
