#include "marker.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "operations.h"
#include "plugin.h"

namespace paceline::nccl {
namespace {

// Of the driver's interface (docs.nvidia.com, CUDA driver API); version 2 of memory operations is from CUDA 11.7.
constexpr int kCan64BitWrites = 122;  // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
constexpr unsigned kRegisterPortable = 1, kRegisterMapped = 2;
constexpr unsigned kWriteDefault = 0;  // what the stream did before is visible before the value is
constexpr int kNotCapturing = 0;
constexpr uint64_t kRoundMask = (uint64_t{1} << PACELINE_MARK_ROUND_BITS) - 1;

struct Driver {
  int (*stream_write)(void* stream, uint64_t address, uint64_t value, unsigned flags);
  int (*stream_is_capturing)(void* stream, int* status);
  int (*host_register)(void* address, size_t bytes, unsigned flags);
  int (*host_device_pointer)(uint64_t* device, void* address, unsigned flags);
  int (*context_current)(void** context);
  int (*context_device)(int* device);
  int (*device_attribute)(int* value, int attribute, int device);
};

enum State : uint32_t { kOff, kOn, kNoDriver, kRefused };  // nccl_marker of the process header

bool is_wanted() {
  static const bool wanted = [] {
    const char* text = getenv("PACELINE_NCCL_MARKER");
    return text != nullptr && strcmp(text, "1") == 0;
  }();
  return wanted;
}

template <class F>
bool find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

// Only a driver that this process has loaded anyway.
const Driver* driver() {
  static Driver found{};
  static std::atomic<bool> known{false};
  if (known.load(std::memory_order_acquire)) return &found;
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  bool whole = find(library, "cuStreamWriteValue64_v2", &found.stream_write) &&
               find(library, "cuStreamIsCapturing", &found.stream_is_capturing) &&
               find(library, "cuMemHostRegister_v2", &found.host_register) &&
               find(library, "cuMemHostGetDevicePointer_v2", &found.host_device_pointer) &&
               find(library, "cuCtxGetCurrent", &found.context_current) &&
               find(library, "cuCtxGetDevice", &found.context_device) &&
               find(library, "cuDeviceGetAttribute", &found.device_attribute);
  if (!whole) return nullptr;
  known.store(true, std::memory_order_release);
  return &found;
}

void show(State state) {
  paceline_page_v1* page = live_page();
  if (page != nullptr) put(page->process().nccl_marker, static_cast<uint32_t>(state));
}

bool can_write(const Driver& cuda) {
  void* context = nullptr;
  int device = 0, can = 0;
  if (cuda.context_current(&context) != 0 || context == nullptr) return false;
  if (cuda.context_device(&device) != 0) return false;
  return cuda.device_attribute(&can, kCan64BitWrites, device) == 0 && can != 0;
}

// Where the GPUs see the frames of the page; 0 where the driver refuses. `registering` of comm.cc is held.
uint64_t device_frames(const Driver& cuda, paceline_page_v1* page) {
  static uint64_t found = 0;
  static bool refused = false;
  if (found != 0 || refused) return found;
  char* frames = page->base() + PACELINE_FRAMES_OFFSET;
  constexpr size_t kBytes = size_t{PACELINE_FRAME_STRIDE} * PACELINE_COMMUNICATORS_MAX;
  refused = cuda.host_register(frames, kBytes, kRegisterPortable | kRegisterMapped) != 0 ||
            cuda.host_device_pointer(&found, frames, 0) != 0;
  if (refused) found = 0;
  return found;
}

uint64_t next_tag() {
  static uint64_t last = 0;  // `registering` is held
  last = last % 0xffff + 1;
  return last << PACELINE_MARK_ROUND_BITS;
}

// For good: what comes after it cannot be told from what was before.
void switch_off(Comm* comm) {
  if (!comm->marks.on.exchange(false)) return;
  forget_marks(comm);
  put(comm->frame->gpu_tag, 0);
  paceline_page_v1* page = live_page();
  if (page != nullptr) add_shared(page->process().nccl_marks_off, 1);
}

bool write(const Comm* comm, size_t field, uint64_t round) {
  const Driver* cuda = driver();
  return cuda != nullptr &&
         cuda->stream_write(comm->marks.stream, comm->marks.trailer + field - offsetof(Frame, gpu_arrive),
                            comm->marks.tag | (round & kRoundMask), kWriteDefault) == 0;
}

bool is_usable(Marks* marks, void* stream) {
  if (marks->has_stream && marks->stream != stream) return false;  // they would overtake each other
  if (!marks->has_stream) show(kOn);
  marks->stream = stream;
  marks->has_stream = true;
  int status = kNotCapturing;
  return driver()->stream_is_capturing(stream, &status) == 0 && status == kNotCapturing;
}

bool is_live(const Comm* comm) {
  return comm->marks.on.load(std::memory_order_relaxed) && comm->live.load(std::memory_order_acquire) &&
         live_page() != nullptr;
}

}  // namespace

void open_marks(Comm* comm) {
  Marks& marks = comm->marks;
  marks.on.store(false);
  marks.has_stream = false;
  marks.arrived = marks.left = 0;
  paceline_page_v1* page = live_page();
  if (!is_wanted() || page == nullptr || comm->slot < 0) return;
  const Driver* cuda = driver();
  if (cuda == nullptr) return show(kNoDriver);
  uint64_t frames = can_write(*cuda) ? device_frames(*cuda, page) : 0;
  if (frames == 0) return show(kRefused);
  auto slot = static_cast<uint64_t>(comm->slot);
  marks.trailer = frames + slot * PACELINE_FRAME_STRIDE + offsetof(Frame, gpu_arrive);
  marks.tag = next_tag();
  marks.on.store(true);
}

void close_marks(Comm* comm) { comm->marks.on.store(false); }

void mark_entered(Event* operation, void* stream, bool grouped) {
  Comm* comm = operation->comm;
  if (!is_live(comm)) return;
  Marks& marks = comm->marks;
  uint64_t round = get(comm->frame->round);
  if (!grouped || !has(operation, kListed) || !is_usable(&marks, stream)) return switch_off(comm);
  put(comm->frame->gpu_tag, marks.tag);
  if (marks.arrived == marks.left) marks.launches_before = marks.launches.load(std::memory_order_relaxed);
  if (!write(comm, offsetof(Frame, gpu_arrive), round)) return switch_off(comm);
  marks.arrived = round;
  set_marked(operation, round);
}

void note_launch(Comm* comm) {
  if (comm->marks.on.load(std::memory_order_relaxed)) comm->marks.launches.fetch_add(1, std::memory_order_relaxed);
}

void mark_left(Comm* comm) {
  Marks& marks = comm->marks;
  if (marks.arrived == marks.left || !is_live(comm)) return;
  // Without a launch the kernels may come later, from another thread: then this would overtake them.
  if (marks.launches.load(std::memory_order_relaxed) == marks.launches_before) return switch_off(comm);
  if (!write(comm, offsetof(Frame, gpu_leave), marks.arrived)) return switch_off(comm);
  marks.left = marks.arrived;
}

uint64_t round_left(const Comm* comm) {
  uint64_t mark = get(comm->frame->gpu_leave);
  return (mark & ~kRoundMask) == comm->marks.tag ? mark & kRoundMask : 0;
}

}  // namespace paceline::nccl
