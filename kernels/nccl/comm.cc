#include "comm.h"

#include "operations.h"
#include "page_source.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

std::mutex registering;
Comm* comms[kCommsMax];  // never freed
uint32_t comms_made = 0;
uint64_t closed_count = 0, opened_count = 0;

// The nth communicator of this hash and size in this process: repeated shrinks give the same hash. The shim's hashes
// are of one communicator each, of which a process may be several ranks.
uint32_t next_instance(const Opening& opening, uint32_t source) {
  uint32_t instance = 0;
  for (uint32_t i = 0; i < comms_made; i++) {
    const Comm& comm = *comms[i];
    bool same = comm.hash == opening.hash && comm.nranks == static_cast<uint32_t>(opening.nranks);
    if (source == PACELINE_SOURCE_NCCL_SHIM) same = same && comm.rank == static_cast<uint32_t>(opening.rank);
    if (same && comm.instance + 1 > instance) instance = comm.instance + 1;
  }
  return instance;
}

Comm* make_comm() {
  if (comms_made == kCommsMax) return nullptr;
  Comm* comm = new (std::nothrow) Comm();
  if (comm != nullptr) comms[comms_made++] = comm;
  return comm;
}

// The one closed longest ago, when all were used: nobody speaks of it any more.
Comm* reuse_comm() {
  Comm* oldest = nullptr;
  for (uint32_t i = 0; i < comms_made; i++) {
    Comm* comm = comms[i];
    if (comm->live.load() || comm->open_count != 0) continue;
    if (oldest == nullptr || comm->closed_order < oldest->closed_order) oldest = comm;
  }
  return oldest;
}

uint64_t identify(const Comm& comm) {
  uint64_t mixed = paceline_mix64_v1(comm.hash ^ paceline_mix64_v1(uint64_t{comm.nranks} << 32 | comm.instance));
  return mixed == 0 ? 1 : mixed;
}

void open_frame(Comm* comm, paceline_page_v1* page, const Opening& opening, uint32_t source) {
  comm->slot = -1;
  if (page == nullptr) return;
  int32_t global = get(page->process().global_rank);
  paceline_communicator_v1 opened{};
  opened.comm = comm->id;
  opened.instance = comm->instance;
  opened.comm_rank = comm->rank;
  opened.nranks = comm->nranks;
  opened.global_rank = global >= 0 ? static_cast<uint32_t>(global) : comm->rank;
  opened.sources = source;
  comm->slot = paceline_open_communicator_v1(page, &opened);
  if (comm->slot < 0) return;
  comm->frame = &page->frame(static_cast<uint32_t>(comm->slot));
  comm->edges = page->edges(static_cast<uint32_t>(comm->slot));
  if (source == PACELINE_SOURCE_NCCL_PROFILER) put(comm->frame->context, comm->hash);
  put(comm->frame->nnodes, opening.nodes > 0 ? static_cast<uint32_t>(opening.nodes) : 0u);
  comm->flags = 0;
  show_flags(comm, PACELINE_FRAME_FLAG_COMPLETION_UNOBSERVABLE | PACELINE_FRAME_FLAG_COUNTS_UNOBSERVABLE);
}

bool is_plausible(const Opening& opening) {
  return opening.nranks > 0 && opening.rank >= 0 && opening.rank < opening.nranks;
}

bool is_alike(const Comm& comm, const Opening& opening) {
  return comm.nranks == static_cast<uint32_t>(opening.nranks) && comm.rank == static_cast<uint32_t>(opening.rank);
}

// The only one of which `is_meant` holds; `several` is set where there are more.
template <class Check>
Comm* only_one(Check is_meant, bool* several) {
  Comm* found = nullptr;
  for (uint32_t i = 0; i < comms_made; i++) {
    if (!comms[i]->live.load() || !is_meant(*comms[i])) continue;
    *several |= found != nullptr;
    found = comms[i];
  }
  return *several ? nullptr : found;
}

// `registering` is held.
Comm* open_new(const Opening& opening, uint32_t source) {
  paceline_page_v1* page = find_page(opening);
  Comm* comm = nullptr;
  uint32_t instance = next_instance(opening, source);
  if (is_plausible(opening) && (comm = make_comm()) == nullptr) comm = reuse_comm();
  if (comm == nullptr) {
    count(Counter::kDropped);
    return nullptr;
  }
  comm->hash = opening.hash;
  comm->nranks = static_cast<uint32_t>(opening.nranks);
  comm->rank = static_cast<uint32_t>(opening.rank);
  comm->instance = instance;
  comm->id = identify(*comm);
  comm->chained = comm->announced = false;
  comm->chained_context = nullptr;
  comm->ended_unseen = true;
  comm->counts_exact = false;
  comm->proxied.store(false);
  comm->called.store(source == PACELINE_SOURCE_NCCL_SHIM);
  comm->starting = comm->called.load();
  comm->profiled = !comm->starting;
  comm->opened_order = ++opened_count;
  comm->children.store(0);
  open_frame(comm, page, opening, source);
  if (source == PACELINE_SOURCE_NCCL_PROFILER) open_marks(comm);  // the shim sees no launches
  comm->live.store(true, std::memory_order_release);
  if (comm->slot >= 0) announce_comm(comm, opening);
  return comm;
}

// What the shim counts and the profiler sees as well is one frame.
void join_profiler(Comm* comm, const Opening& opening) {
  comm->profiled = true;
  paceline_page_v1* page = live_page();
  if (page == nullptr || comm->slot < 0) return;
  put(comm->frame->context, opening.hash);
  put(comm->frame->nnodes, opening.nodes > 0 ? static_cast<uint32_t>(opening.nodes) : 0u);
  paceline_add_sources_v1(page, comm->slot, PACELINE_SOURCE_NCCL_PROFILER);
}

}  // namespace

Comm* detached_comm() {
  static Comm* detached = new (std::nothrow) Comm();
  return detached;
}

Comm* open_comm(const Opening& opening) {
  std::lock_guard<std::mutex> guard(registering);
  bool several = false;
  Comm* comm = only_one(
      [&](const Comm& other) { return other.starting && !other.profiled && is_alike(other, opening); }, &several);
  if (several) {
    count(Counter::kDropped);
    return detached_comm();
  }
  if (comm != nullptr) {
    join_profiler(comm, opening);
    return comm;
  }
  comm = open_new(opening, PACELINE_SOURCE_NCCL_PROFILER);
  return comm != nullptr ? comm : detached_comm();
}

Comm* open_called_comm(const Opening& opening) {
  std::lock_guard<std::mutex> guard(registering);
  return open_new(opening, PACELINE_SOURCE_NCCL_SHIM);
}

void is_through(Comm* comm) {
  std::lock_guard<std::mutex> guard(registering);
  comm->starting = false;
}

Comm* claim_comm(const Opening& opening, uint64_t since) {
  std::lock_guard<std::mutex> guard(registering);
  bool several = false;
  Comm* comm = only_one(
      [&](const Comm& other) {
        return !other.called.load() && other.opened_order > since && is_alike(other, opening);
      },
      &several);
  if (several) return nullptr;
  if (comm == nullptr) {
    if (opening.hash == 0) return nullptr;
    comm = open_new(opening, PACELINE_SOURCE_NCCL_SHIM);
    if (comm != nullptr) comm->starting = false;
    return comm;
  }
  comm->called.store(true);
  close_marks(comm);
  paceline_page_v1* page = live_page();
  if (page != nullptr && comm->slot >= 0) paceline_add_sources_v1(page, comm->slot, PACELINE_SOURCE_NCCL_SHIM);
  return comm;
}

uint64_t last_opened() {
  std::lock_guard<std::mutex> guard(registering);
  return opened_count;
}

void close_comm(Comm* comm) {
  if (comm == nullptr || !comm->live.exchange(false)) return;
  std::lock_guard<std::mutex> guard(registering);
  comm->closed_order = ++closed_count;
  close_marks(comm);
  abandon_operations(comm);
  paceline_page_v1* page = live_page();
  if (page == nullptr || comm->slot < 0) return;
  paceline_close_communicator_v1(page, comm->slot);
  retract_comm(comm);
}

void show_flags(Comm* comm, uint32_t flags) {
  paceline_page_v1* page = live_page();
  if (page == nullptr || comm->slot < 0 || flags == comm->flags) return;
  paceline_change_flags_v1(page, comm->slot, flags & ~comm->flags, comm->flags & ~flags);
  comm->flags = flags;
}

}  // namespace paceline::nccl
