#include "memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace paceline {
namespace {

// Newer than the headers of the oldest systems we build on.
constexpr unsigned kNoExecSeal = 0x0008u;     // MFD_NOEXEC_SEAL, Linux 6.3
constexpr int kAddSeals = 1033;               // F_ADD_SEALS
constexpr int kSealSeal = 0x0001;             // F_SEAL_SEAL
constexpr int kSealShrink = 0x0002;           // F_SEAL_SHRINK
constexpr int kSealGrow = 0x0004;             // F_SEAL_GROW
constexpr int kSealFutureWrite = 0x0010;      // F_SEAL_FUTURE_WRITE, Linux 5.1
constexpr unsigned kCloexec = 0x0001u;        // MFD_CLOEXEC
constexpr unsigned kAllowSealing = 0x0002u;   // MFD_ALLOW_SEALING

int open_memfd(const char* name) {
  long fd = syscall(SYS_memfd_create, name, kCloexec | kAllowSealing | kNoExecSeal);
  if (fd < 0 && errno == EINVAL) fd = syscall(SYS_memfd_create, name, kCloexec | kAllowSealing);
  return fd < 0 ? -errno : static_cast<int>(fd);
}

// Memory is taken now: a hole that cannot be filled later would be a SIGBUS in the training process.
int reserve(int fd, size_t bytes) {
  rlimit limit{};  // beyond it the kernel sends SIGXFSZ, which ends a process that does not ignore it
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) return -EFBIG;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return -errno;
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    return -errno;
  }
  return 0;
}

int reopen_read_only(int fd) {
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return open(path, O_RDONLY | O_CLOEXEC);
}

int fail(Mapping* mapping, int error) {
  release(mapping);
  return error;
}

}  // namespace

void release(Mapping* mapping) {
  if (mapping->address != nullptr) munmap(mapping->address, mapping->bytes);
  if (mapping->fd >= 0) close(mapping->fd);
  *mapping = Mapping{};
}

int create_page_memfd(const char* name, size_t bytes, Mapping* mapping) {
  *mapping = Mapping{};
  mapping->bytes = bytes;
  mapping->fd = open_memfd(name);
  if (mapping->fd < 0) {
    int error = mapping->fd;
    mapping->fd = -1;
    return error;
  }
  if (int error = reserve(mapping->fd, bytes)) return fail(mapping, error);
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, mapping->fd, 0);
  if (address == MAP_FAILED) return fail(mapping, -errno);
  mapping->address = address;
  if (fcntl(mapping->fd, kAddSeals, kSealShrink | kSealGrow) != 0) return fail(mapping, -errno);
  fcntl(mapping->fd, kAddSeals, kSealFutureWrite);  // refused before Linux 5.1: the fd is read-only anyway
  fcntl(mapping->fd, kAddSeals, kSealSeal);
  int read_only = reopen_read_only(mapping->fd);
  if (read_only >= 0) {  // without /proc the sealed descriptor itself is handed over
    close(mapping->fd);
    mapping->fd = read_only;
  }
  return 0;
}

int create_control_memfd(const char* name, const void* content, size_t bytes, Mapping* mapping) {
  *mapping = Mapping{};
  mapping->bytes = bytes;
  mapping->fd = open_memfd(name);
  if (mapping->fd < 0) {
    int error = mapping->fd;
    mapping->fd = -1;
    return error;
  }
  if (int error = reserve(mapping->fd, bytes)) return fail(mapping, error);
  if (pwrite(mapping->fd, content, bytes, 0) != static_cast<ssize_t>(bytes)) return fail(mapping, -EIO);
  void* address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, mapping->fd, 0);
  if (address == MAP_FAILED) return fail(mapping, -errno);
  mapping->address = address;
  if (fcntl(mapping->fd, kAddSeals, kSealShrink | kSealGrow | kSealSeal) != 0) return fail(mapping, -errno);
  return 0;
}

}  // namespace paceline
