// What NCCL calls, in both versions: every path returns success, whatever happens behind it.
#include "plugin.h"

#include "behind.h"
#include "callbacks.h"
#include "chain.h"
#include "nccl_version.h"

namespace paceline::nccl {
namespace {

template <int kVersion>
Result start(Comm* comm, void** handle, const Descriptor& descriptor, uint64_t now_ns) {
  uint64_t type = type_of(descriptor, kVersion);
  switch (type) {
    case event::kProxyOp:
      *handle = start_proxy_op(comm, descriptor, now_ns);
      break;
    case event::kProxyStep:
      *handle = start_proxy_step(descriptor, now_ns);
      break;
    case event::kKernelCh:
      *handle = start_kernel(descriptor, now_ns);
      break;
    case event::kCollApi:
    case event::kP2pApi:
      *handle = start_call(comm, descriptor, type, now_ns);
      break;
    case event::kColl:
    case event::kP2p:
      *handle = start_task(comm, descriptor, type, kVersion, now_ns);
      break;
    case event::kGroupApi:
      *handle = start_group(comm, descriptor, type, now_ns);
      break;
    case event::kGroup:
      *handle = kVersion < 5 ? start_group(comm, descriptor, type, now_ns) : start_other(comm, descriptor, type);
      break;
    case event::kKernelLaunch:
      *handle = start_launch(comm, descriptor, type, now_ns);
      break;
    default:  // network plugins run in proxies of other processes too: their context means nothing here
      *handle = nullptr;
  }
  return kSuccess;
}

// Set by the first `init`, which is before all else.
std::atomic<const ShimTable*> behind{nullptr};

// Its table of this version, nullptr where there is no shim.
template <int kVersion>
auto shim() {
  const ShimTable* to = behind.load(std::memory_order_relaxed);
  if constexpr (kVersion < 5) return to != nullptr ? to->v4 : nullptr;
  else return to != nullptr ? to->v5 : nullptr;
}

template <int kVersion>
Result on_start(void* context, void** handle, Descriptor* descriptor) noexcept {
  if (handle == nullptr) return kSuccess;
  if (const auto* to = shim<kVersion>()) return to->start(context, handle, descriptor);
  *handle = nullptr;
  if (descriptor == nullptr || (live_page() == nullptr && !is_chained())) return kSuccess;
  Call call;
  return start<kVersion>(static_cast<Comm*>(context), handle, *descriptor, call.now_ns());
}

template <int kVersion>
Result on_stop(void* handle) noexcept {
  if (handle == nullptr) return kSuccess;
  if (const auto* to = shim<kVersion>()) return to->stop(handle);
  Call call;
  switch (*static_cast<Kind*>(handle)) {
    case Kind::kProxyStep:
      stop_proxy_step(static_cast<ProxyStep*>(handle), call.now_ns());
      break;
    case Kind::kProxyOp:
      stop_proxy_op(static_cast<ProxyOp*>(handle), call.now_ns());
      break;
    case Kind::kFree:
      break;
    case Kind::kKernel:
      stop_kernel(static_cast<Event*>(handle), call.now_ns());
      stop_event(static_cast<Event*>(handle), kVersion, call.now_ns());
      break;
    default:
      stop_event(static_cast<Event*>(handle), kVersion, call.now_ns());
  }
  return kSuccess;
}

template <int kVersion>
Result on_record(void* handle, int state, StateArguments* arguments) noexcept {
  if (handle == nullptr) return kSuccess;
  if (const auto* to = shim<kVersion>()) return to->record(handle, state, arguments);
  Call call;
  chain_record(chained_handle(handle), state, arguments);
  Kind kind = *static_cast<Kind*>(handle);
  if (kind == Kind::kProxyStep) {
    record_step(static_cast<ProxyStep*>(handle), state, arguments, call.now_ns());
  } else if (kind == Kind::kKernel && state == state::kKernelStop) {
    stop_kernel(static_cast<Event*>(handle), call.now_ns());
  } else if (kind == Kind::kGroupApi && state == state::kEndApiStart) {
    end_of_calls(static_cast<Event*>(handle), call.now_ns());
  }
  return kSuccess;
}

// Into NCCL's own log, from the thread that makes the communicator: what stands before it in this thread, rings and
// trees, is of this one. It is read by the agent (docs/adr/0038-nccl-orders.md).
void say_identity(const Comm& comm, LogFunction log) {
  constexpr int kInfo = 3;
  constexpr unsigned long kInit = 1;
  if (log == nullptr || comm.slot < 0) return;
  log(kInfo, kInit, "paceline", 0, "Paceline communicator %016llx rank %u of %u",
      static_cast<unsigned long long>(comm.id), comm.rank, comm.nranks);
}

Result on_init(int version, void** context, int* mask, const Opening& opening) noexcept {
  tune_clock();
  open_chain(version);
  if (version < 5) begin_v4();
  Comm* comm = open_comm(opening);
  if (comm != nullptr && comm != detached_comm()) {
    say_identity(*comm, opening.log);
    chain_init(comm, opening);
  }
  begin_detail(mask, nccl_version(opening.log));
  if (context != nullptr) *context = comm;
  return kSuccess;
}

Result init_v4(void** context, int* mask, const char* name, uint64_t hash, int nodes, int nranks, int rank,
               LogFunction log) noexcept {
  if (const ShimTable* to = find_shim()) {
    behind.store(to);
    return to->v4->init(context, mask, name, hash, nodes, nranks, rank, log);
  }
  return on_init(4, context, mask, Opening{hash, name, nodes, nranks, rank, log});
}

Result init_v5(void** context, uint64_t hash, int* mask, const char* name, int nodes, int nranks, int rank,
               LogFunction log) noexcept {
  if (const ShimTable* to = find_shim()) {
    behind.store(to);
    return to->v5->init(context, hash, mask, name, nodes, nranks, rank, log);
  }
  return on_init(5, context, mask, Opening{hash, name, nodes, nranks, rank, log});
}

// Nothing is freed and nothing unmapped: proxies are shared, and what they still say must find its place.
template <int kVersion>
Result on_finalize(void* context) noexcept {
  if (const auto* to = shim<kVersion>()) return to->finalize(context);
  auto* comm = static_cast<Comm*>(context);
  if (comm == nullptr) return kSuccess;
  close_comm(comm);
  chain_finalize(comm);
  return kSuccess;
}

}  // namespace

Plugin& plugin() {
  static Plugin state;
  return state;
}

void count(Counter counter) {
  paceline_page_v1* page = live_page();
  if (page == nullptr) return;
  Process& process = page->process();
  uint64_t* const counters[] = {&process.nccl_foreign, &process.nccl_dropped, &process.nccl_late,
                                &process.nccl_replays};
  add_shared(*counters[static_cast<int>(counter)], 1);
}

}  // namespace paceline::nccl

extern "C" {

__attribute__((visibility("default"))) paceline::nccl::ProfilerV4 ncclProfiler_v4 = {
    "Paceline",           paceline::nccl::init_v4,   paceline::nccl::on_start<4>,
    paceline::nccl::on_stop<4>, paceline::nccl::on_record<4>, paceline::nccl::on_finalize<4>};

__attribute__((visibility("default"))) paceline::nccl::ProfilerV5 ncclProfiler_v5 = {
    "Paceline",           paceline::nccl::init_v5,   paceline::nccl::on_start<5>,
    paceline::nccl::on_stop<5>, paceline::nccl::on_record<5>, paceline::nccl::on_finalize<5>};

}  // extern "C"
