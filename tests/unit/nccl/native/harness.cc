// Loads a profiler plugin as NCCL does and makes the calls that it is told to make, one line each:
//
//   harness PLUGIN [NEWEST]       NEWEST: highest version to look for (default 7). HARNESS_DRIVER: a library that the
//                                 process loads before, as programs load CUDA's driver at run time
//   THREAD init CTX NAME HASH NODES NRANKS RANK LOG    NAME - and LOG 0: nullptr
//   THREAD sample HANDLE          keeps the mask as it is now, as NCCL does at the start of a group
//   THREAD start HANDLE CTX TYPE FIELD...    FIELD: w@OFFSET=VALUE; w of b d q (1, 4, 8 bytes), s text, h handle;
//                                 m@0=HANDLE: left out where the mask kept there does not have the event
//   THREAD record HANDLE STATE ARGUMENT      ARGUMENT - for nullptr
//   THREAD stop HANDLE
//   THREAD finalize CTX
//   drain                                   wait for all threads
//   sync | sleep MS | mask | null HANDLE    the same, then wait for a time, print the mask, or whether a handle is
//                                           nullptr; each answers with a line
//
// Descriptors are bytes at offsets that are given here as numbers: nothing is shared with the plugin's header.
// Threads wait for the handles of one another, as NCCL's do through its queues, and for nothing else.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using Words = std::vector<std::string>;
using Start = int (*)(void*, void**, void*);
using Stop = int (*)(void*);
using Record = int (*)(void*, int, void*);
using Finalize = int (*)(void*);
using Log = void (*)(int, unsigned long, const char*, int, const char*, ...);
using InitV4 = int (*)(void**, int*, const char*, uint64_t, int, int, int, Log);
using InitV5 = int (*)(void**, uint64_t, int*, const char*, int, int, int, Log);

constexpr size_t kHandlesMax = 1 << 21;
constexpr size_t kDescriptorBytes = 136;  // of version 7; an older NCCL has fewer
void* const kUnset = reinterpret_cast<void*>(-1);

struct Plugin {
  int version = 0;
  const char* name = nullptr;
  void* init = nullptr;
  Start start = nullptr;
  Stop stop = nullptr;
  Record record = nullptr;
  Finalize finalize = nullptr;
};

Plugin plugin;
int mask = 0;
std::atomic<void*>* handles;  // also contexts
std::atomic<int> failures{0};
std::mutex text_mutex;
std::set<std::string> texts;

// As NCCL writes it, into the file of HARNESS_LOG.
__attribute__((format(printf, 5, 6))) void log_message(int level, unsigned long flags, const char*, int,
                                                       const char* format, ...) {
  const char* path = getenv("HARNESS_LOG");
  FILE* file = path != nullptr && level == 3 && flags == 1 ? fopen(path, "a") : nullptr;
  if (file == nullptr) return;
  fprintf(file, "node-a:%d:%ld [0] NCCL INFO ", static_cast<int>(getpid()), syscall(SYS_gettid));
  va_list arguments;
  va_start(arguments, format);
  vfprintf(file, format, arguments);
  va_end(arguments);
  fputc('\n', file);
  fclose(file);
}

[[noreturn]] void fail(const std::string& message) {
  fprintf(stderr, "harness: %s\n", message.c_str());
  exit(2);
}

const char* keep(const std::string& text) {
  std::lock_guard<std::mutex> guard(text_mutex);
  return texts.insert(text).first->c_str();
}

// A struct of 48 bytes with six pointers: NCCL reads data, not a function.
bool load(const char* path, int newest) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(dlerror());
  for (int version = newest; version >= 1; version--) {
    std::string symbol = "ncclProfiler_v" + std::to_string(version);
    void** table = static_cast<void**>(dlsym(library, symbol.c_str()));
    if (table == nullptr) continue;
    Dl_info info{};
    const ElfW(Sym)* entry = nullptr;
    if (dladdr1(table, &info, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&entry)), RTLD_DL_SYMENT) == 0 ||
        entry == nullptr || ELF64_ST_TYPE(entry->st_info) != STT_OBJECT || entry->st_size != 48) {
      fail(symbol + " is no data of 48 bytes");
    }
    for (int i = 0; i < 6; i++) {
      if (table[i] == nullptr) fail(symbol + " has an empty place");
    }
    plugin = Plugin{version, static_cast<const char*>(table[0]), table[1], reinterpret_cast<Start>(table[2]),
                    reinterpret_cast<Stop>(table[3]), reinterpret_cast<Record>(table[4]),
                    reinterpret_cast<Finalize>(table[5])};
    return true;
  }
  return false;
}

size_t index_of(const std::string& word) {
  size_t index = strtoull(word.c_str(), nullptr, 0);
  if (index >= kHandlesMax) fail("handle " + word);
  return index;
}

void* await(const std::string& word) {
  if (word.compare(0, 4, "raw:") == 0) return reinterpret_cast<void*>(strtoull(word.c_str() + 4, nullptr, 0));
  size_t index = index_of(word);
  if (index == 0) return nullptr;
  void* value;
  while ((value = handles[index].load(std::memory_order_acquire)) == kUnset) std::this_thread::yield();
  return value;
}

void must(int result, const Words& words) {
  if (result != 0) {
    failures++;
    fprintf(stderr, "harness: %s returned %d\n", words[1].c_str(), result);
  }
}

void init(const Words& words) {
  const char* name = words[3] == "-" ? nullptr : keep(words[3]);
  uint64_t hash = strtoull(words[4].c_str(), nullptr, 0);
  int nodes = atoi(words[5].c_str()), nranks = atoi(words[6].c_str()), rank = atoi(words[7].c_str());
  Log log = words[8] == "0" ? nullptr : log_message;
  void* context = nullptr;
  int result = plugin.version >= 5
                   ? reinterpret_cast<InitV5>(plugin.init)(&context, hash, &mask, name, nodes, nranks, rank, log)
                   : reinterpret_cast<InitV4>(plugin.init)(&context, &mask, name, hash, nodes, nranks, rank, log);
  must(result, words);
  handles[index_of(words[2])].store(context, std::memory_order_release);
}

void set_field(unsigned char* bytes, const std::string& field) {
  size_t equals = field.find('=');
  size_t offset = strtoull(field.c_str() + 2, nullptr, 10);
  std::string value = field.substr(equals + 1);
  uint64_t number = strtoull(value.c_str(), nullptr, 0);
  if (field[0] == 'h') number = reinterpret_cast<uint64_t>(await(value));
  if (field[0] == 's') number = value == "-" ? 0 : reinterpret_cast<uint64_t>(keep(value));
  size_t width = field[0] == 'b' ? 1 : field[0] == 'd' ? 4 : 8;
  if (offset + width > kDescriptorBytes) fail("field " + field);
  memcpy(bytes + offset, &number, width);
}

void start(const Words& words) {
  auto type = static_cast<uint64_t>(strtoull(words[4].c_str(), nullptr, 0));
  alignas(8) unsigned char bytes[kDescriptorBytes];
  memset(bytes, 0xa5, sizeof bytes);  // what is not set is garbage, as on NCCL's stack
  memcpy(bytes, &type, plugin.version >= 5 ? 8 : 1);
  uint64_t asked = UINT64_MAX;
  for (size_t i = 5; i < words.size(); i++) {
    if (words[i][0] == 'm') asked = reinterpret_cast<uint64_t>(await(words[i].substr(4)));
    else set_field(bytes, words[i]);
  }
  void* handle = nullptr;
  void* parent;
  memcpy(&parent, bytes + 8, sizeof parent);
  bool is_step = type == 16;
  bool wanted = (asked & type) != 0 && !(is_step && parent == nullptr);
  if (wanted) must(plugin.start(await(words[3]), &handle, bytes), words);
  handles[index_of(words[2])].store(handle, std::memory_order_release);
}

void record(const Words& words) {
  void* handle = await(words[2]);
  uint64_t argument = strtoull(words[4].c_str(), nullptr, 0);
  if (handle == nullptr) return;
  must(plugin.record(handle, atoi(words[3].c_str()), words[4] == "-" ? nullptr : &argument), words);
}

void stop(const Words& words) {
  void* handle = await(words[2]);
  if (handle != nullptr) must(plugin.stop(handle), words);
}

void sample(const Words& words) {
  uint64_t now = static_cast<uint32_t>(__atomic_load_n(&mask, __ATOMIC_RELAXED));
  handles[index_of(words[2])].store(reinterpret_cast<void*>(now), std::memory_order_release);
}

void execute(const Words& words) {
  const std::string& call = words[1];
  if (call == "start" && words.size() >= 5) start(words);
  else if (call == "record" && words.size() == 5) record(words);
  else if (call == "stop" && words.size() == 3) stop(words);
  else if (call == "sample" && words.size() == 3) sample(words);
  else if (call == "init" && words.size() == 9) init(words);
  else if (call == "finalize") must(plugin.finalize(await(words[2])), words);
  else fail("call " + call);
}

// One thread of NCCL's.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    push({});
    thread_.join();
  }
  void push(Words words) {
    std::lock_guard<std::mutex> guard(mutex_);
    queue_.push_back(std::move(words));
    wake_.notify_all();
  }
  void drain() {
    std::unique_lock<std::mutex> guard(mutex_);
    idle_.wait(guard, [this] { return queue_.empty() && !busy_; });
  }

 private:
  void run() {
    for (;;) {
      std::deque<Words> batch;
      {
        std::unique_lock<std::mutex> guard(mutex_);
        busy_ = false;
        idle_.notify_all();
        wake_.wait(guard, [this] { return !queue_.empty(); });
        batch.swap(queue_);
        busy_ = true;
      }
      for (const Words& words : batch) {
        if (words.empty()) return;
        execute(words);
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Words> queue_;
  bool busy_ = false;
  std::thread thread_;
};

Words split(const char* line) {
  Words words;
  for (const char* at = line; *at != '\0';) {
    size_t length = strcspn(at, " \n");
    if (length > 0) words.emplace_back(at, length);
    at += length + (at[length] != '\0');
  }
  return words;
}

}  // namespace

// The library that calls a plugin tells its version.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  const char* text = getenv("HARNESS_NCCL_VERSION");
  *version = text != nullptr ? atoi(text) : 22809;
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const char* driver = getenv("HARNESS_DRIVER");
  if (driver != nullptr && dlopen(driver, RTLD_NOW | RTLD_LOCAL) == nullptr) fail(dlerror());
  handles = new std::atomic<void*>[kHandlesMax];
  for (size_t i = 0; i < kHandlesMax; i++) handles[i].store(kUnset, std::memory_order_relaxed);
  if (!load(argv[1], argc > 2 ? atoi(argv[2]) : 7)) fail("no ncclProfiler symbol");
  printf("loaded %d %s\n", plugin.version, plugin.name);
  fflush(stdout);
  std::map<std::string, Worker> workers;
  char* line = nullptr;
  size_t capacity = 0;
  while (getline(&line, &capacity, stdin) > 0) {
    Words words = split(line);
    if (words.empty()) continue;
    if (words[0] != "drain" && words[0] != "sync" && words[0] != "mask" && words[0] != "null" && words[0] != "sleep") {
      workers[words[0]].push(std::move(words));
      continue;
    }
    for (auto& worker : workers) worker.second.drain();
    if (words[0] == "drain") continue;
    if (words[0] == "sleep") usleep(static_cast<useconds_t>(1000 * atoi(words[1].c_str())));
    if (words[0] == "mask") printf("%d\n", __atomic_load_n(&mask, __ATOMIC_RELAXED));
    else if (words[0] == "null") printf("%d\n", await(words[1]) == nullptr);
    else printf("ok %d\n", failures.load());
    fflush(stdout);
  }
  free(line);
  return failures == 0 ? 0 : 1;
}
