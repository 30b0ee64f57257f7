#include "chain.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <mutex>

namespace paceline::nccl {
namespace {

struct Chain {
  int version = 0;  // that it is spoken to in; 0 = none
  int ours = 0;     // that NCCL speaks with us
  const ProfilerV4* v4 = nullptr;
  const ProfilerV5* v5 = nullptr;
  int mask = 0;  // written by it at any time
  uint32_t asked = 0;
};

Chain chain;
std::once_flag opened;

void find_symbols(void* library) {
  // As NCCL does it: the newest it knows. Version 5 can be spoken whatever NCCL speaks with us.
  chain.v5 = static_cast<const ProfilerV5*>(dlsym(library, "ncclProfiler_v5"));
  if (chain.v5 != nullptr) {
    chain.version = 5;
    return;
  }
  chain.v4 = static_cast<const ProfilerV4*>(dlsym(library, "ncclProfiler_v4"));
  if (chain.v4 != nullptr) chain.version = 4;
}

void load(int version) {
  chain.ours = version;
  const char* path = getenv("PACELINE_CHAIN_PROFILER");
  if (path == nullptr || path[0] == '\0') return;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library != nullptr) find_symbols(library);
}

// Bits of the type byte beyond version 4 mean nothing to a plugin of version 4.
bool is_known(uint64_t type) { return chain.version >= 5 || type <= event::kKnownToV4; }

}  // namespace

void open_chain(int version) { std::call_once(opened, load, version); }

bool is_chained() { return chain.version != 0; }

uint32_t chained_events() {
  if (!is_chained()) return 0;
  auto wanted = static_cast<uint32_t>(__atomic_load_n(&chain.mask, __ATOMIC_RELAXED));
  __atomic_store_n(&chain.asked, wanted, __ATOMIC_RELAXED);
  return wanted;
}

bool chain_wants_more() {
  if (!is_chained()) return false;
  auto wanted = static_cast<uint32_t>(__atomic_load_n(&chain.mask, __ATOMIC_RELAXED));
  return wanted != __atomic_load_n(&chain.asked, __ATOMIC_RELAXED);
}

void chain_init(Comm* comm, const Opening& opening) {
  if (!is_chained()) return;
  Result result;
  if (chain.version == 5) {
    result = chain.v5->init(&comm->chained_context, opening.hash, &chain.mask, opening.name, opening.nodes,
                            opening.nranks, opening.rank, opening.log);
  } else {
    result = chain.v4->init(&comm->chained_context, &chain.mask, opening.name, opening.hash, opening.nodes,
                            opening.nranks, opening.rank, opening.log);
  }
  comm->chained = result == kSuccess;
}

void chain_finalize(Comm* comm) {
  if (!comm->chained) return;
  chain.version == 5 ? chain.v5->finalize(comm->chained_context) : chain.v4->finalize(comm->chained_context);
}

void* chain_start(Comm* comm, const Descriptor& descriptor, uint64_t type, void* parent, void* group) {
  if (comm == nullptr || !comm->chained || !is_known(type)) return nullptr;
  if ((static_cast<uint32_t>(__atomic_load_n(&chain.mask, __ATOMIC_RELAXED)) & type) == 0) return nullptr;
  Descriptor copy{};
  // From a descriptor of version 4 only what it has; its type is one byte, which little endian reads either way.
  memcpy(&copy, &descriptor, chain.ours < 5 ? kDescriptorV4Bytes : sizeof copy);
  copy.type = type;
  copy.parent = parent;
  if (type == event::kColl && chain.version == 5) copy.coll.parent_group = group;
  if (type == event::kP2p && chain.version == 5) copy.p2p.parent_group = group;
  if (chain.version == 4 && chain.ours >= 5 && group != nullptr) copy.parent = group;
  void* handle = nullptr;
  Result result = chain.version == 5 ? chain.v5->start(comm->chained_context, &handle, &copy)
                                     : chain.v4->start(comm->chained_context, &handle, &copy);
  return result == kSuccess ? handle : nullptr;
}

void chain_stop(void* handle) {
  if (handle == nullptr) return;
  chain.version == 5 ? chain.v5->stop(handle) : chain.v4->stop(handle);
}

void chain_record(void* handle, int state, StateArguments* arguments) {
  if (handle == nullptr) return;
  chain.version == 5 ? chain.v5->record(handle, state, arguments) : chain.v4->record(handle, state, arguments);
}

}  // namespace paceline::nccl
