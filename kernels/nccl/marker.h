// Marks: 64-bit writes that the GPU makes into the trailer of a frame when the stream of a communicator comes to
// an operation, and when it is through with it (docs/adr/0036-gpu-marks.md). Off unless PACELINE_NCCL_MARKER=1.
//
// Calls of the driver wait where a stream is full, until the GPU goes on, for which it may need NCCL's proxy: no
// lock is held around them, and they are made on the thread of the API call only.
#pragma once

#include <atomic>
#include <cstdint>

namespace paceline::nccl {

struct Comm;
struct Event;

// Of one communicator. The API of a communicator is called by one thread at a time; only that writes it.
struct Marks {
  std::atomic<bool> on{false};
  uint64_t tag = 0;         // upper 16 bits of its marks
  uint64_t trailer = 0;     // of its frame, where the GPU sees it
  void* stream = nullptr;   // of its first operation
  bool has_stream = false;
  uint64_t arrived = 0, left = 0;  // newest rounds with a mark
  uint64_t launches_before = 0;    // when the first operation of the group was entered
  std::atomic<uint64_t> launches{0};
};

// At `init`, on a thread with a current context: finds the driver, registers the frames with it, once.
void open_marks(Comm* comm);
// The slot is about to be another's.
void close_marks(Comm* comm);

// An operation was entered in a group of calls (`grouped`), and will be put into `stream`.
void mark_entered(Event* operation, void* stream, bool grouped);
void note_launch(Comm* comm);
// Its group of calls has returned: everything is in the stream.
void mark_left(Comm* comm);

// Newest round that the GPU is through with.
uint64_t round_left(const Comm* comm);

}  // namespace paceline::nccl
