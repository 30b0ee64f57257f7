#include "page_source.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "agent_link.h"
#include "identity.h"
#include "nccl_version.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

struct Loaded {
  char extension[1024];  // path of the trainer's extension, empty where it is not in this process
  bool torch;
};

int look(dl_phdr_info* info, size_t, void* argument) {
  auto* loaded = static_cast<Loaded*>(argument);
  const char* name = info->dlpi_name;
  if (name == nullptr) return 0;
  if (strstr(name, "/paceline/probe/_native") != nullptr && strlen(name) < sizeof loaded->extension) {
    strcpy(loaded->extension, name);
  }
  loaded->torch |= strstr(name, "/libtorch") != nullptr;
  return 0;
}

paceline_page_v1* page_of_extension(const char* path) {
  using Shared = paceline_page_v1* (*)(uint32_t);
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto shared = reinterpret_cast<Shared>(dlsym(library, "paceline_shared_page_v1"));
  // The library is kept: the page's threads run in it.
  return shared != nullptr ? shared(PACELINE_PAGE_ABI) : nullptr;
}

bool is_hook_expected(const Loaded& loaded) {
  const char* wanted = getenv("PACELINE");
  return loaded.torch && wanted != nullptr && strcmp(wanted, "1") == 0;
}

Identity identity;  // of a page of our own
bool is_own = false;

// Launchers that say nothing: the largest communicator is the world.
void learn_ranks(const Opening& opening) {
  bool said = identity.rank >= 0 && identity.world_size > 0;
  static bool guessed = false;
  if (said && !(guessed && opening.nranks > identity.world_size)) return;
  guessed = true;
  identity.rank = opening.rank;
  identity.world_size = opening.nranks;
}

paceline_identity_v1 as_page_identity() {
  return paceline_identity_v1{identity.job.get(), identity.attempt.get(), identity.rank, identity.world_size,
                              identity.local_rank};
}

paceline_page_v1* make_page(const Opening& opening) {
  identity = read_identity();
  learn_ranks(opening);
  uint32_t version = nccl_version(opening.log);
  Text<64> framework;
  framework.add("nccl %u.%u.%u", version / 10000, version / 100 % 100, version % 100);
  paceline_identity_v1 said = as_page_identity();
  paceline_page_v1* page = nullptr;
  if (paceline_page_create_v1(&said, framework.get(), &page) != 0) return nullptr;
  paceline_page_set_phase_v1(page, PACELINE_PHASE_TRAIN, "train");
  is_own = true;
  start_link(page);
  say_hello(identity, version);
  return page;
}

void learn_more(paceline_page_v1* page, const Opening& opening) {
  int32_t before = identity.world_size;
  learn_ranks(opening);
  if (identity.world_size == before) return;
  paceline_identity_v1 said = as_page_identity();
  paceline_page_set_identity_v1(page, &said);
  say_hello(identity, plugin().version.load());
}

}  // namespace

paceline_page_v1* find_page(const Opening& opening) {
  static bool refused = false;  // once is enough: the machine will not change its mind
  paceline_page_v1* page = live_page();
  if (page != nullptr) {
    if (is_own) learn_more(page, opening);
    return page;
  }
  if (refused || is_own || is_disabled()) return nullptr;
  Loaded loaded{};
  dl_iterate_phdr(look, &loaded);
  if (loaded.extension[0] != '\0') page = page_of_extension(loaded.extension);
  else if (!is_hook_expected(loaded)) refused = (page = make_page(opening)) == nullptr;
  if (page != nullptr) plugin().page.store(page, std::memory_order_release);
  return page;
}

void announce_comm(Comm* comm, const Opening& opening) {
  bool whole = identity.world_size == opening.nranks && identity.rank == opening.rank;
  if (!is_own || !whole) return;  // its members are not known here: the analysis takes those that report
  comm->announced = true;
  say_opened(comm->id, comm->nranks, comm->instance, comm->slot);
}

void retract_comm(Comm* comm) {
  if (comm->announced) say_closed(comm->id);
}

}  // namespace paceline::nccl
