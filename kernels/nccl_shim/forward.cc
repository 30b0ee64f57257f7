// A process may hold several copies of NCCL, and a communicator of one means nothing to another: which one is called
// depends on the caller, as it does for the dynamic linker. A copy in the global scope is everybody's; else the one
// that the calling library is linked with; else any that is loaded.
#include "forward.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include <atomic>
#include <mutex>

namespace paceline::nccl {
namespace {

constexpr uint32_t kFunctions = static_cast<uint32_t>(Function::kCount);

// The p-symbols are what NCCL keeps for tools that wrap it.
constexpr const char* kNames[kFunctions] = {
#define PACELINE_NAME(name, parameters) "p" #name,
    PACELINE_NCCL_FUNCTIONS(PACELINE_NAME)
#undef PACELINE_NAME
    "pncclCommCount", "pncclCommUserRank",
};

struct Range {
  uintptr_t begin, end;
};

// Found once for callers in `range`; others are looked up at each call.
struct Known {
  std::atomic<void*> function{nullptr};
  Range range{};
};
Known known[kFunctions];
std::mutex finding;

struct Search {
  uintptr_t caller;
  Range range;           // of the caller's library
  char library[1024];    // its path
  char nccl[1024];       // of a loaded NCCL or RCCL
};

void copy_path(char (&to)[1024], const char* path) {
  if (path != nullptr && strlen(path) < sizeof to) strcpy(to, path);
}

bool is_nccl(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* name = slash != nullptr ? slash + 1 : path;
  return strncmp(name, "libnccl.so", 10) == 0 || strncmp(name, "librccl.so", 10) == 0;
}

int look(dl_phdr_info* info, size_t, void* argument) {
  auto* search = static_cast<Search*>(argument);
  Range all{UINTPTR_MAX, 0};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    uintptr_t begin = info->dlpi_addr + part.p_vaddr, end = begin + part.p_memsz;
    if (begin < all.begin) all.begin = begin;
    if (end > all.end) all.end = end;
  }
  if (all.begin <= search->caller && search->caller < all.end) {
    search->range = all;
    copy_path(search->library, info->dlpi_name);
  }
  if (search->nccl[0] == '\0' && info->dlpi_name != nullptr && is_nccl(info->dlpi_name)) {
    copy_path(search->nccl, info->dlpi_name);
  }
  return 0;
}

void* in_library(const char* path, const char* name) {
  void* library = path[0] != '\0' ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (library == nullptr) return nullptr;
  void* found = dlsym(library, name);
  dlclose(library);  // it was loaded before, and its user is calling
  return found;
}

// Our own plain name is no answer: it would call itself for ever.
bool is_ours(const void* found) {
  Dl_info there{}, here{};
  return found != nullptr && dladdr(found, &there) != 0 &&
         dladdr(reinterpret_cast<const void*>(&find_function), &here) != 0 && there.dli_fbase == here.dli_fbase;
}

void* other_than_ours(void* found) { return is_ours(found) ? nullptr : found; }

void* look_up(const char* name, Search* search) {
  if (void* found = other_than_ours(dlsym(RTLD_NEXT, name))) {
    search->range = Range{0, UINTPTR_MAX};
    return found;
  }
  if (void* found = other_than_ours(in_library(search->library, name))) return found;
  return other_than_ours(in_library(search->nccl, name));
}

void say_missing(Function function) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  fprintf(stderr, "paceline: no NCCL in this process has %s; the call returns ncclInvalidUsage\n",
          kNames[static_cast<uint32_t>(function)] + 1);
}

}  // namespace

void* find_function(Function function, const void* caller) {
  auto place = static_cast<uint32_t>(function);
  auto address = reinterpret_cast<uintptr_t>(caller);
  Known& entry = known[place];
  void* found = entry.function.load(std::memory_order_acquire);
  if (found != nullptr && entry.range.begin <= address && address < entry.range.end) return found;
  Search search{};
  search.caller = address;
  dl_iterate_phdr(look, &search);
  void* result = look_up(kNames[place], &search);
  if (result == nullptr) result = look_up(kNames[place] + 1, &search);
  if (result == nullptr) {
    say_missing(function);
    return nullptr;
  }
  std::lock_guard<std::mutex> guard(finding);
  if (entry.function.load(std::memory_order_relaxed) == nullptr && search.range.begin < search.range.end) {
    entry.range = search.range;
    entry.function.store(result, std::memory_order_release);
  }
  return result;
}

}  // namespace paceline::nccl
