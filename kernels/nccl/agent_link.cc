#include "agent_link.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "hello.h"
#include "page.h"

namespace paceline::nccl {
namespace {

constexpr int kOpenedMax = 64, kIoTimeoutS = 2;
constexpr uint32_t kFirstPauseMs = 100, kPauseMsMax = 5'000;
constexpr uint32_t kRefusedFirstMs = 1'000, kRefusedMsMax = 30'000, kDoublingsMax = 10;

struct Opened {
  uint64_t comm;  // 0 = place not used
  Text<320> message;
};

struct Link {
  std::mutex mutex;  // what is to be said
  paceline_page_v1* page = nullptr;
  Text<4096> hello;
  Opened opened[kOpenedMax] = {};
  uint64_t closed[kOpenedMax] = {};
  int closed_count = 0;
  bool changed = false;
  std::atomic<int> sock{-1}, wake{-1};
  std::atomic<bool> welcome{false};
};

Link link;

enum class Outcome { kLost, kRefused };

bool send_all(int sock, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t sent = send(sock, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool send_message(int sock, const char* text, size_t size) {
  uint32_t length = static_cast<uint32_t>(size);
  return send_all(sock, &length, sizeof length) && send_all(sock, text, size);
}

// The length of the hello, and with it both descriptors.
bool send_descriptors(int sock, uint32_t length) {
  int fds[2] = {paceline_page_fd_v1(link.page), paceline_control_fd_v1(link.page)};
  if (fds[0] < 0 || fds[1] < 0) return false;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  iovec part{&length, sizeof length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fds);
  memcpy(CMSG_DATA(header), fds, sizeof fds);
  return sendmsg(sock, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof length);
}

bool send_hello(int sock, bool with_pages) {
  std::lock_guard<std::mutex> guard(link.mutex);
  auto length = static_cast<uint32_t>(link.hello.size());
  if (!with_pages) return send_message(sock, link.hello.get(), length);
  return send_descriptors(sock, length) && send_all(sock, link.hello.get(), length);
}

bool send_communicators(int sock) {
  std::lock_guard<std::mutex> guard(link.mutex);
  link.changed = false;
  for (const Opened& opened : link.opened) {
    if (opened.comm != 0 && !send_message(sock, opened.message.get(), opened.message.size())) return false;
  }
  while (link.closed_count > 0) {
    Text<96> message;
    message.add("{\"type\":\"communicator_closed\",\"communicator\":\"%016llx\"}",
                static_cast<unsigned long long>(link.closed[--link.closed_count]));
    if (!send_message(sock, message.get(), message.size())) return false;
  }
  return true;
}

// Below /tmp anybody could have made the folder first: only root and this user are believed there.
bool is_trusted(int sock, const char* path) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return strncmp(path, "/tmp/", 5) != 0 || peer.uid == 0 || peer.uid == getuid();
}

int connect_agent() {
  Text<108> path = agent_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.is_cut()) return -1;
  memcpy(address.sun_path, path.get(), path.size());
  int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  timeval limit{kIoTimeoutS, 0};
  setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (connect(sock, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && is_trusted(sock, path.get())) {
    return sock;
  }
  if (sock >= 0) close(sock);
  return -1;
}

void drain_wakes() {
  uint64_t count;
  while (read(link.wake.load(), &count, sizeof count) > 0) {
  }
}

// Reads what the agent says; false at the end of the connection. Only two words of it matter.
bool listen_to(int sock, Outcome* outcome) {
  char text[4096];
  ssize_t size = recv(sock, text, sizeof text - 1, MSG_DONTWAIT);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (size == 0) return false;
  if (memmem(text, static_cast<size_t>(size), "\"refused\"", 9) != nullptr) {
    *outcome = Outcome::kRefused;
    return false;
  }
  if (memmem(text, static_cast<size_t>(size), "\"welcome\"", 9) != nullptr) link.welcome.store(true);
  return true;
}

Outcome attend(int sock) {
  Outcome outcome = Outcome::kLost;
  if (!send_hello(sock, true) || !send_communicators(sock)) return outcome;
  for (;;) {
    pollfd ends[2] = {{sock, POLLIN, 0}, {link.wake.load(), POLLIN, 0}};
    if (poll(ends, 2, -1) < 0 && errno != EINTR) return outcome;
    if (ends[1].revents != 0) {
      drain_wakes();
      if (!send_hello(sock, false) || !send_communicators(sock)) return outcome;
    }
    if (ends[0].revents != 0 && !listen_to(sock, &outcome)) return outcome;
  }
}

// Between half and one and a half times the pause, so that the ranks of a node do not come together.
void pause_for(uint32_t ms) {
  uint64_t chance = paceline_mix64_v1(monotonic_ns() ^ static_cast<uint64_t>(getpid())) % 1000;
  pollfd wake{link.wake.load(), POLLIN, 0};
  poll(&wake, 1, static_cast<int>(ms / 2 + ms * chance / 1000));
  drain_wakes();
}

void* run(void*) {
  uint32_t tries = 0;
  for (;;) {
    Outcome outcome = Outcome::kLost;
    int sock = connect_agent();
    if (sock >= 0) {
      link.sock.store(sock);
      outcome = attend(sock);
      link.sock.store(-1);
      close(sock);
    }
    tries = link.welcome.exchange(false) ? 0 : (tries < kDoublingsMax ? tries + 1 : tries);
    bool refused = outcome == Outcome::kRefused;
    uint32_t pause = (refused ? kRefusedFirstMs : kFirstPauseMs) << tries;
    uint32_t most = refused ? kRefusedMsMax : kPauseMsMax;
    pause_for(pause < most ? pause : most);
  }
}

void forget_in_child() {
  int sock = link.sock.exchange(-1), wake = link.wake.exchange(-1);
  if (sock >= 0) close(sock);
  if (wake >= 0) close(wake);
}

void wake_thread() {
  uint64_t one = 1;
  int wake = link.wake.load();
  if (wake >= 0 && write(wake, &one, sizeof one) < 0) return;  // full: it is awake already
}

// The process ends in order, as far as anybody inside can tell; its exit status has the last word.
__attribute__((destructor)) void say_goodbye() {
  if (link.page == nullptr || !link.page->usable()) return;
  paceline_page_finish_v1(link.page);
  int sock = link.sock.load();
  static const char kGoodbye[] = "{\"type\":\"goodbye\",\"reason\":\"finished\"}";
  if (sock < 0 || !link.mutex.try_lock()) return;
  send_message(sock, kGoodbye, sizeof kGoodbye - 1);
  link.mutex.unlock();
}

}  // namespace

void start_link(paceline_page_v1* page) {
  link.page = page;
  link.wake.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (link.wake.load() < 0) return;
  pthread_atfork(nullptr, nullptr, forget_in_child);
  sigset_t all, before;  // signals of the training process are for its own threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, run, nullptr) == 0) {
    pthread_setname_np(thread, "paceline-link");
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void say_hello(const Identity& identity, uint32_t nccl_version) {
  if (link.page == nullptr) return;
  Text<4096> text = hello_text(identity, get(link.page->process().pid_start), nccl_version);
  if (text.is_cut()) return paceline_page_count_error_v1(link.page);
  std::lock_guard<std::mutex> guard(link.mutex);
  link.hello = text;
  link.changed = true;
  wake_thread();
}

void say_opened(uint64_t comm, uint32_t nranks, uint32_t instance, int slot) {
  std::lock_guard<std::mutex> guard(link.mutex);
  for (Opened& opened : link.opened) {
    if (opened.comm != 0) continue;
    opened.comm = comm;
    opened.message = Text<320>();
    Text<32> ranks;
    nranks > 1 ? ranks.add("0-%u", nranks - 1) : ranks.add("0");
    opened.message.add("{\"type\":\"communicator_opened\",\"communicator\":\"%016llx\",\"name\":\"world\"",
                       static_cast<unsigned long long>(comm));
    opened.message.add(",\"ranks\":\"%s\",\"instance\":%u,\"backend\":\"nccl\",\"slot\":%d,\"kind\":\"world\"}",
                       ranks.get(), instance, slot);
    link.changed = true;
    return wake_thread();
  }
}

void say_closed(uint64_t comm) {
  std::lock_guard<std::mutex> guard(link.mutex);
  for (Opened& opened : link.opened) {
    if (opened.comm != comm) continue;
    opened.comm = 0;
    if (link.closed_count < kOpenedMax) link.closed[link.closed_count++] = comm;
    link.changed = true;
    return wake_thread();
  }
}

}  // namespace paceline::nccl
