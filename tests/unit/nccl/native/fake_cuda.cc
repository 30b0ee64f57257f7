// A driver with one GPU that does what a test lets it do. FAKE_CUDA names a file of 64-bit words, which the test
// writes and reads: see Word. Writes into streams wait in one queue; a thread carries out the first `kAllowed`.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <mutex>
#include <thread>

namespace {

enum Word { kAllowed, kDone, kQueued, kRegistered, kRegisteredBytes, kCapturing, kFails, kCannot, kNoContext, kFlags };
constexpr uint64_t kDeviceOffset = uint64_t{1} << 44;  // the GPU sees host memory elsewhere

struct Write {
  uint64_t address, value;
};

std::mutex mutex;
std::deque<Write>& queue = *new std::deque<Write>();  // its thread goes on while the process ends

volatile uint64_t* words() {
  static auto* found = static_cast<volatile uint64_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(getenv("FAKE_CUDA"), O_RDWR | O_CLOEXEC), 0));
  return found;
}

[[noreturn]] void run() {
  for (;; usleep(500)) {
    std::lock_guard<std::mutex> guard(mutex);
    while (!queue.empty() && words()[kDone] < words()[kAllowed]) {
      auto* target = reinterpret_cast<uint64_t*>(queue.front().address - kDeviceOffset);
      __atomic_store_n(target, queue.front().value, __ATOMIC_RELEASE);
      queue.pop_front();
      words()[kDone] = words()[kDone] + 1;
    }
  }
}

}  // namespace

extern "C" {

int cuStreamWriteValue64_v2(void*, uint64_t address, uint64_t value, unsigned flags) {
  static const bool started = [] {
    std::thread(run).detach();
    return true;
  }();
  (void)started;
  if (words()[kFails] != 0) return static_cast<int>(words()[kFails]);
  std::lock_guard<std::mutex> guard(mutex);
  queue.push_back({address, value});
  words()[kQueued] = words()[kQueued] + 1;
  words()[kFlags] = flags;
  return 0;
}

int cuStreamIsCapturing(void*, int* status) {
  *status = static_cast<int>(words()[kCapturing]);
  return 0;
}

int cuMemHostRegister_v2(void*, size_t bytes, unsigned) {
  words()[kRegistered] = words()[kRegistered] + 1;
  words()[kRegisteredBytes] = bytes;
  return 0;
}

int cuMemHostGetDevicePointer_v2(uint64_t* device, void* address, unsigned) {
  *device = reinterpret_cast<uint64_t>(address) + kDeviceOffset;
  return 0;
}

int cuCtxGetCurrent(void** context) {
  *context = words()[kNoContext] != 0 ? nullptr : reinterpret_cast<void*>(1);
  return 0;
}

int cuCtxGetDevice(int* device) {
  *device = 0;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 122 && words()[kCannot] == 0;
  return 0;
}
}
