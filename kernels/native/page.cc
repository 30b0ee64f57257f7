// Life of a page and its process header.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include "page.h"

namespace paceline {
namespace {

constexpr int kControlTriesMax = 64;

std::mutex pages_mutex;
paceline_page_v1* pages = nullptr;
thread_local uint32_t cached_thread_id = 0;

void before_fork() { pages_mutex.lock(); }
void after_fork_in_parent() { pages_mutex.unlock(); }

// The child shares the memory and has no heartbeat thread: it must never write its parent's page.
void after_fork_in_child() {
  for (paceline_page_v1* page = pages; page != nullptr; page = page->next) {
    page->active.store(false, std::memory_order_relaxed);
    page->forked = true;
    page->heart.running = false;
    release(&page->page);
    release(&page->control);
  }
  pages = nullptr;
  forget_thread_id();
  pages_mutex.unlock();
}

bool watch_forks() {
  static const bool watched = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  return watched;
}

void enlist(paceline_page_v1* page) {
  std::lock_guard<std::mutex> guard(pages_mutex);
  page->next = pages;
  if (pages != nullptr) pages->previous = page;
  pages = page;
}

void delist(paceline_page_v1* page) {
  if (page->forked) return;
  std::lock_guard<std::mutex> guard(pages_mutex);
  if (page->previous != nullptr) page->previous->next = page->next;
  if (page->next != nullptr) page->next->previous = page->previous;
  if (pages == page) pages = page->next;
}

// NUL padded, cut between UTF-8 characters, always at least one NUL.
template <size_t N>
void put_text(char (&field)[N], const char* text) {
  static_assert(N % 8 == 0, "strings are written in words");
  alignas(8) char padded[N] = {};
  size_t length = text == nullptr ? 0 : strnlen(text, N);
  if (length > N - 1) {
    length = N - 1;
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) length--;
  }
  if (length > 0) memcpy(padded, text, length);
  put_words(field, padded, N);
}

// Field 22 of /proc/self/stat; the second field may contain spaces and parentheses. 0 = unknown.
uint64_t read_start_ticks() {
  char text[1024];
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* at = strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 22; field++) at = strchr(at + 1, ' ');
  return at == nullptr ? 0 : strtoull(at + 1, nullptr, 10);
}

void write_identity(Process& process, const paceline_identity_v1& identity) {
  put_text(process.job, identity.job);
  put_text(process.attempt, identity.attempt);
  put(process.global_rank, identity.global_rank);
  put(process.world_size, identity.world_size);
  put(process.local_rank, identity.local_rank);
}

void write_header(paceline_page_v1* page, const paceline_identity_v1& identity, const char* framework) {
  Process& process = page->process();
  SequenceWrite write(process.lock);
  put(process.version, PACELINE_LAYOUT_VERSION);
  put(process.header_bytes, sizeof(Process));
  put(process.page_bytes, PACELINE_PAGE_BYTES);
  put(process.host_wait_rank, -1);
  put(process.pid, static_cast<int32_t>(getpid()));
  put(process.pid_start, read_start_ticks());
  uint64_t now_ns = monotonic_ns();
  put(process.created_ns, now_ns);
  put(process.phase_entered_ns, now_ns);
  put_text(process.framework, framework);
  write_identity(process, identity);
  put(process.magic, PACELINE_PAGE_MAGIC);
}

Control initial_control() {
  Control control{};
  control.magic = PACELINE_CONTROL_MAGIC;
  control.version = PACELINE_LAYOUT_VERSION;
  control.control_bytes = sizeof(Control);
  control.detail = PACELINE_DETAIL_LEVEL_ROUNDS;
  return control;
}

int open_memory(paceline_page_v1* page) {
  if (int error = create_page_memfd("paceline-page", PACELINE_PAGE_BYTES, &page->page)) return error;
  Control control = initial_control();
  return create_control_memfd("paceline-control", &control, sizeof control, &page->control);
}

void free_page(paceline_page_v1* page) {
  release(&page->page);
  release(&page->control);
  for (auto& communicator : page->communicators) free(communicator.load());
  page->~paceline_page_v1();
  free(page);
}

}  // namespace

void count_error(paceline_page_v1* page) { add_shared(page->process().errors, 1); }

uint32_t thread_id() {
  if (cached_thread_id == 0) cached_thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
  return cached_thread_id;
}

void forget_thread_id() { cached_thread_id = 0; }

}  // namespace paceline

using namespace paceline;

extern "C" {

int paceline_page_create_v1(const paceline_identity_v1* identity, const char* framework,
                            paceline_page_v1** result) {
  *result = nullptr;
  if (!watch_forks()) return -ENOMEM;
  void* memory = calloc(1, sizeof(paceline_page_v1));
  if (memory == nullptr) return -ENOMEM;
  auto* page = new (memory) paceline_page_v1();
  int error = open_memory(page);
  if (error == 0) {
    write_header(page, *identity, framework);
    error = start_heart(page);
  }
  if (error != 0) {
    free_page(page);
    return error;
  }
  page->active.store(true);
  enlist(page);
  *result = page;
  return 0;
}

void paceline_page_close_v1(paceline_page_v1* page) {
  page->active.store(false);
  stop_heart(page);
}

void paceline_page_destroy_v1(paceline_page_v1* page) {
  paceline_page_close_v1(page);
  delist(page);
  if (page->pins.load() == 0) free_page(page);
}

// The plugin looks it up in the extension that the trainer loaded, hence visible.
__attribute__((visibility("default"))) paceline_page_v1* paceline_shared_page_v1(uint32_t abi) {
  if (abi != PACELINE_PAGE_ABI) return nullptr;
  std::lock_guard<std::mutex> guard(pages_mutex);
  for (paceline_page_v1* page = pages; page != nullptr; page = page->next) {
    if (!page->usable()) continue;
    page->pins.fetch_add(1);
    return page;
  }
  return nullptr;
}

int paceline_page_fd_v1(const paceline_page_v1* page) { return page->forked ? -1 : page->page.fd; }
int paceline_control_fd_v1(const paceline_page_v1* page) { return page->forked ? -1 : page->control.fd; }
int paceline_page_active_v1(const paceline_page_v1* page) { return page->usable() ? 1 : 0; }
void* paceline_page_address_v1(const paceline_page_v1* page) { return page->forked ? nullptr : page->base(); }

void paceline_page_set_identity_v1(paceline_page_v1* page, const paceline_identity_v1* identity) {
  if (!page->usable()) return;
  std::lock_guard<std::mutex> guard(page->mutex);
  SequenceWrite write(page->process().lock);
  write_identity(page->process(), *identity);
}

void paceline_page_set_phase_v1(paceline_page_v1* page, uint32_t phase, const char* name) {
  if (!page->usable()) return;
  std::lock_guard<std::mutex> guard(page->mutex);
  Process& process = page->process();
  SequenceWrite write(process.lock);
  put(process.phase, phase);
  put(process.phase_entered_ns, monotonic_ns());
  put_text(process.phase_name, name);
}

void paceline_page_set_host_wait_v1(paceline_page_v1* page, uint32_t kind, const char* name, int32_t rank) {
  if (!page->usable()) return;
  std::lock_guard<std::mutex> guard(page->mutex);
  Process& process = page->process();
  bool waiting = kind != PACELINE_HOST_WAIT_NONE;
  SequenceWrite write(process.lock);
  put(process.host_wait, kind);
  put(process.host_wait_entered_ns, waiting ? monotonic_ns() : 0);
  put(process.host_wait_rank, waiting ? rank : -1);
  put_text(process.host_wait_name, waiting ? name : nullptr);
}

void paceline_page_set_step_v1(paceline_page_v1* page, uint64_t step) {
  if (!page->usable()) return;
  std::lock_guard<std::mutex> guard(page->mutex);
  SequenceWrite write(page->process().lock);
  put(page->process().step, step);
  put(page->process().step_entered_ns, monotonic_ns());
}

void paceline_page_add_paced_v1(paceline_page_v1* page, uint64_t paced_ns) {
  if (page->usable()) add_shared(page->process().paced_ns, paced_ns);
}

void paceline_page_beat_v1(paceline_page_v1* page) {
  if (!page->usable()) return;
  put(page->process().python_beat_ns, monotonic_ns());
  add_shared(page->process().python_beats, 1);
}

void paceline_page_finish_v1(paceline_page_v1* page) {
  if (page->usable()) put(page->process().finished, 1);
}

void paceline_page_count_error_v1(paceline_page_v1* page) {
  if (page->usable()) count_error(page);
}

int paceline_page_read_control_v1(paceline_page_v1* page, paceline_control_page_v1* control) {
  if (!page->usable()) {
    *control = Control{};
    return 0;
  }
  const Control& requested = page->requested();
  for (int i = 0; i < kControlTriesMax; i++) {
    uint32_t before = __atomic_load_n(&requested.lock, __ATOMIC_ACQUIRE);
    control->detail = get(requested.detail);
    control->generation = get(requested.generation);
    control->pace_ns = get(requested.pace_ns);
    control->pace_expires_ns = get(requested.pace_expires_ns);
    control->agent_beat_ns = get(requested.agent_beat_ns);
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((before & 1u) == 0 && get(requested.lock) == before) return 1;
    cpu_relax();
  }
  control->pace_ns = 0;  // half a request, its agent was killed while writing: never slow anybody down for it
  return 0;
}

}  // extern "C"
