#include "nccl_version.h"

#include <dlfcn.h>

namespace paceline::nccl {
namespace {

using GetVersion = Result (*)(int*);

GetVersion in_library_of(LogFunction log) {
  Dl_info info{};
  if (log == nullptr || dladdr(reinterpret_cast<void*>(log), &info) == 0 || info.dli_fname == nullptr) return nullptr;
  void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto found = reinterpret_cast<GetVersion>(dlsym(library, "ncclGetVersion"));
  dlclose(library);  // NCCL itself stays: it is calling us
  return found;
}

}  // namespace

uint32_t nccl_version(LogFunction log) {
  GetVersion get_version = in_library_of(log);
  if (get_version == nullptr) get_version = reinterpret_cast<GetVersion>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != kSuccess || version < 0) return 0;
  return static_cast<uint32_t>(version);
}

}  // namespace paceline::nccl
