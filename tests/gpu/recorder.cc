// A profiler plugin (versions 4 and 5) that writes down every call it gets, one JSON object a line: golden traces of
// NCCL, and a stand-in for NCCL's Inspector behind ours. tests/gpu/traces.py reads it.
//
//   RECORDER_FILE        where to; without it nothing is written
//   RECORDER_MASK        the events it asks for, else all that are read here
//   RECORDER_CALLS_MAX   calls that are written (200,000); then one line says so, and no event gets a handle
//
// A line: "ns" since the first call, "thread" (0, 1, ... as they appear), "call" and what it was given; descriptors by
// the names of their fields, handles and contexts as numbers in the order in which they were given out. What another
// process owns (PXN) is never read, but for the address: "raw:0x...".
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <mutex>

namespace {

struct Field {
  const char* name;
  char width;  // b, d, q: 1, 4, 8 bytes; s: a text; h: a handle
  int offset;
  bool since_5;
};

struct Kind {
  uint64_t type;
  const char* name;
  Field fields[10];
};

// Of versions 4 and 5, which agree but for the parent group.
constexpr Kind kKinds[] = {
    {1, "Group", {}},
    {2, "Coll",
     {{"sequence", 'q', 24, false}, {"function", 's', 32, false}, {"count", 'q', 56, false}, {"root", 'd', 64, false},
      {"dtype", 's', 72, false}, {"channels", 'b', 80, false}, {"warps", 'b', 81, false},
      {"algorithm", 's', 88, false}, {"protocol", 's', 96, false}, {"parent_group", 'h', 104, true}}},
    {4, "P2p",
     {{"function", 's', 24, false}, {"dtype", 's', 40, false}, {"count", 'q', 48, false}, {"peer", 'd', 56, false},
      {"channels", 'b', 60, false}, {"parent_group", 'h', 64, true}}},
    {8, "ProxyOp",
     {{"pid", 'd', 24, false}, {"channel", 'b', 28, false}, {"peer", 'd', 32, false}, {"steps", 'd', 36, false},
      {"chunk", 'd', 40, false}, {"is_send", 'd', 44, false}}},
    {16, "ProxyStep", {{"step", 'd', 24, false}}},
    {64, "KernelCh", {{"channel", 'b', 24, false}, {"gpu_ns", 'q', 32, false}}},
    {256, "GroupApi", {{"captured", 'b', 24, false}, {"depth", 'd', 28, false}}},
    {512, "CollApi",
     {{"function", 's', 24, false}, {"count", 'q', 32, false}, {"dtype", 's', 40, false}, {"root", 'd', 48, false},
      {"stream", 'q', 56, false}, {"captured", 'b', 64, false}}},
    {1024, "P2pApi",
     {{"function", 's', 24, false}, {"count", 'q', 32, false}, {"dtype", 's', 40, false}, {"stream", 'q', 48, false},
      {"captured", 'b', 56, false}}},
    {2048, "KernelLaunch", {{"stream", 'q', 24, false}}},
};
constexpr int kAll = 1 | 2 | 4 | 8 | 16 | 64 | 256 | 512 | 1024 | 2048;

std::mutex mutex;
FILE* out = nullptr;
long written = 0, calls_max = 200'000;
uint64_t first_ns = 0;
std::map<long, int> threads;
std::map<const void*, long> numbers;  // of handles and contexts
long last_number = 0;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void write_text(const char* text) {
  if (text == nullptr) {
    fputs("null", out);
    return;
  }
  fputc('"', out);
  for (; *text != '\0'; text++) {
    auto byte = static_cast<unsigned char>(*text);
    if (byte == '"' || byte == '\\') fprintf(out, "\\%c", byte);
    else if (byte < 0x20 || byte >= 0x7f) fprintf(out, "\\u%04x", byte);
    else fputc(byte, out);
  }
  fputc('"', out);
}

void write_pointer(const void* pointer) {
  auto found = numbers.find(pointer);
  if (pointer == nullptr) fputc('0', out);
  else if (found != numbers.end()) fprintf(out, "%ld", found->second);
  else fprintf(out, "\"raw:%p\"", pointer);
}

// A handle nobody has had: its address is one for good. Four bytes are enough, and they are never freed.
void* make_handle() {
  void* handle = malloc(4);
  if (handle != nullptr) numbers[handle] = ++last_number;
  return handle;
}

// The beginning of a line; false where nothing more is written. `mutex` is held.
bool begin(const char* call, int version) {
  if (out == nullptr && first_ns == 0) {
    const char *path = getenv("RECORDER_FILE"), *most = getenv("RECORDER_CALLS_MAX");
    if (most != nullptr) calls_max = atol(most);
    if (path != nullptr) out = fopen(path, "we");
    first_ns = now_ns();
    if (out != nullptr) {
      setvbuf(out, nullptr, _IOLBF, 1 << 16);  // what is written survives a kill
      fprintf(out, "{\"recorder\": 1, \"version\": %d}\n", version);
    }
  }
  if (out == nullptr || written > calls_max) return false;
  if (written++ == calls_max) {
    fprintf(out, "{\"call\": \"cut\"}\n");
    return false;
  }
  auto thread = threads.emplace(syscall(SYS_gettid), static_cast<int>(threads.size())).first;
  fprintf(out, "{\"ns\": %llu, \"thread\": %d, \"call\": \"%s\"", static_cast<unsigned long long>(now_ns() - first_ns),
          thread->second, call);
  return true;
}

void end() { fputs("}\n", out); }

void write_field(const Field& field, const unsigned char* bytes) {
  uint64_t number = 0;
  memcpy(&number, bytes + field.offset, field.width == 'b' ? 1 : field.width == 'd' ? 4 : 8);
  fprintf(out, "\"%s\": ", field.name);
  if (field.width == 's') write_text(reinterpret_cast<const char*>(number));
  else if (field.width == 'h') write_pointer(reinterpret_cast<const void*>(number));
  else if (field.width != 'd') fprintf(out, "%llu", static_cast<unsigned long long>(number));
  else if (strcmp(field.name, "pid") == 0 && static_cast<int32_t>(number) == getpid()) fputs("\"own\"", out);
  else fprintf(out, "%d", static_cast<int32_t>(number));
}

void write_fields(const Kind& kind, const unsigned char* bytes, int version) {
  fprintf(out, ", \"fields\": {");
  bool first = true;
  for (const Field& field : kind.fields) {
    if (field.name == nullptr || (field.since_5 && version < 5)) continue;
    // Version 4 of NCCL 2.28 and newer leaves the channels of messages as they were on its stack.
    if (version < 5 && kind.type == 4 && strcmp(field.name, "channels") == 0) continue;
    if (!first) fputs(", ", out);
    first = false;
    write_field(field, bytes);
  }
  fputc('}', out);
}

int init(int version, void** context, uint64_t hash, int* mask, const char* name, int nodes, int nranks, int rank,
         bool has_log) {
  std::lock_guard<std::mutex> guard(mutex);
  const char* asked = getenv("RECORDER_MASK");
  __atomic_store_n(mask, asked != nullptr ? atoi(asked) : kAll, __ATOMIC_RELAXED);
  *context = make_handle();
  if (!begin("init", version)) return 0;
  fprintf(out, ", \"context\": ");
  write_pointer(*context);
  fprintf(out, ", \"name\": ");
  write_text(name);
  fprintf(out, ", \"hash\": %llu, \"nodes\": %d, \"nranks\": %d, \"rank\": %d, \"log\": %s",
          static_cast<unsigned long long>(hash), nodes, nranks, rank, has_log ? "true" : "false");
  end();
  return 0;
}

int start(int version, void* context, void** handle, const unsigned char* bytes) {
  std::lock_guard<std::mutex> guard(mutex);
  *handle = nullptr;
  uint64_t type = 0;
  const void* parent;
  memcpy(&type, bytes, version >= 5 ? 8 : 1);
  memcpy(&parent, bytes + 8, sizeof parent);
  const Kind* kind = nullptr;
  for (const Kind& known : kKinds) {
    if (known.type == type) kind = &known;
  }
  if (kind == nullptr || !begin("start", version)) return 0;
  int32_t pid = 0;
  memcpy(&pid, bytes + 24, sizeof pid);
  bool foreign = type == 8 && pid != getpid();
  if (!foreign) *handle = make_handle();
  fprintf(out, ", \"handle\": ");
  write_pointer(*handle);
  fprintf(out, ", \"context\": ");
  write_pointer(context);
  fprintf(out, ", \"type\": \"%s\", \"parent\": ", kind->name);
  write_pointer(parent);
  write_fields(*kind, bytes, version);
  end();
  return 0;
}

int record(void* handle, int state, void* arguments) {
  std::lock_guard<std::mutex> guard(mutex);
  if (!begin("record", 0)) return 0;
  fprintf(out, ", \"handle\": ");
  write_pointer(handle);
  uint64_t argument = 0;
  if (arguments != nullptr) memcpy(&argument, arguments, 8);
  fprintf(out, ", \"state\": %d, \"argument\": ", state);
  if (arguments == nullptr) fputs("null", out);
  else fprintf(out, "%llu", static_cast<unsigned long long>(argument));
  end();
  return 0;
}

int finish(const char* call, const char* of, void* handle) {
  std::lock_guard<std::mutex> guard(mutex);
  if (!begin(call, 0)) return 0;
  fprintf(out, ", \"%s\": ", of);
  write_pointer(handle);
  end();
  return 0;
}

int stop(void* handle) { return finish("stop", "handle", handle); }
int finalize(void* context) { return finish("finalize", "context", context); }

int init_v4(void** context, int* mask, const char* name, uint64_t hash, int nodes, int nranks, int rank, void* log) {
  return init(4, context, hash, mask, name, nodes, nranks, rank, log != nullptr);
}
int init_v5(void** context, uint64_t hash, int* mask, const char* name, int nodes, int nranks, int rank, void* log) {
  return init(5, context, hash, mask, name, nodes, nranks, rank, log != nullptr);
}
int start_v4(void* context, void** handle, void* descriptor) {
  return start(4, context, handle, static_cast<const unsigned char*>(descriptor));
}
int start_v5(void* context, void** handle, void* descriptor) {
  return start(5, context, handle, static_cast<const unsigned char*>(descriptor));
}

template <class Init>
struct Table {
  const char* name;
  Init init;
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*record)(void*, int, void*);
  int (*finalize)(void*);
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) Table<decltype(&init_v4)> ncclProfiler_v4 = {"Recorder", init_v4, start_v4,
                                                                                    stop, record, finalize};
__attribute__((visibility("default"))) Table<decltype(&init_v5)> ncclProfiler_v5 = {"Recorder", init_v5, start_v5,
                                                                                    stop, record, finalize};
}
