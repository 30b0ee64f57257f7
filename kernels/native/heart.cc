// The native heartbeat: a thread that needs no GIL, so that it stops only with the whole process.
#include <errno.h>
#include <signal.h>

#include "page.h"

namespace paceline {
namespace {

constexpr uint64_t kBeatNs = 100000000;  // 10 Hz

void beat(paceline_page_v1* page) {
  Process& process = page->process();
  put(process.native_beat_ns, monotonic_ns());
  add(process.native_beats, 1);
}

timespec after_ns(uint64_t delay_ns) {
  uint64_t at = monotonic_ns() + delay_ns;
  timespec time{};
  time.tv_sec = static_cast<time_t>(at / 1000000000u);
  time.tv_nsec = static_cast<long>(at % 1000000000u);
  return time;
}

void* run(void* argument) {
  auto* page = static_cast<paceline_page_v1*>(argument);
  Heart& heart = page->heart;
  pthread_mutex_lock(&heart.mutex);
  while (!heart.stop) {
    beat(page);
    timespec deadline = after_ns(kBeatNs);
    while (!heart.stop && pthread_cond_timedwait(&heart.wake, &heart.mutex, &deadline) != ETIMEDOUT) {
    }
  }
  pthread_mutex_unlock(&heart.mutex);
  return nullptr;
}

}  // namespace

int start_heart(paceline_page_v1* page) {
  Heart& heart = page->heart;
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&heart.wake, &attributes);
  pthread_condattr_destroy(&attributes);
  pthread_mutex_init(&heart.mutex, nullptr);
  heart.stop = false;
  beat(page);  // a page without a beat would look frozen until its thread first runs
  // Signals of the training process are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(&heart.thread, nullptr, run, page);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return -error;
  heart.running = true;
  pthread_setname_np(heart.thread, "paceline-beat");
  return 0;
}

void stop_heart(paceline_page_v1* page) {
  Heart& heart = page->heart;
  if (!heart.running) return;
  pthread_mutex_lock(&heart.mutex);
  heart.stop = true;
  pthread_cond_signal(&heart.wake);
  pthread_mutex_unlock(&heart.mutex);
  pthread_join(heart.thread, nullptr);
  heart.running = false;
  pthread_cond_destroy(&heart.wake);
  pthread_mutex_destroy(&heart.mutex);
}

}  // namespace paceline
