// What a kernel writes into the probe page of its process while it runs: counts, waits, states, and where it is.
//
// The page lies in pinned host memory; readers of other processes see every store without a copy. All stores are
// relaxed and of system scope, of cumulative numbers that one thread of one block owns, so nothing here needs the
// frame's lock. The layout is that of `paceline/probe_v1.h`. The same text is compiled by NVRTC, and by a C++
// compiler with `host.h`, where a block is a thread.
#pragma once

#ifdef PACELINE_HOST
#include "host.h"
#else
#include "device.cuh"
#endif

#include "paceline/probe_v1.h"

namespace paceline {

constexpr uint64_t kTellNs = 1'000'000;  // a wait that lasts is written so often: stores cross the PCIe bus
constexpr uint64_t kMarkRoundMask = (uint64_t{1} << PACELINE_MARK_ROUND_BITS) - 1;

// One direction of one ring link. Owned by one thread.
class Side {
 public:
  // `fill`: slices of an operation before the pipeline is full; until then a wait counts for the edge alone, and
  // only once it has lasted `still_ns`.
  __device__ Side(paceline_frame_v1* frame, paceline_edge_v1* edge, bool send, uint32_t fill, uint64_t still_ns)
      : frame_(frame), edge_(edge), send_(send), fill_(fill), still_ns_(still_ns), slices_(0), since_ns_(0), told_ns_(0) {
    // Only kernels write these, one after another.
    posted_ = load_relaxed(send ? &frame->send_posted : &frame->recv_posted);
    count_ = load_relaxed(send ? &frame->send_count : &frame->recv_count);
    bytes_ = load_relaxed(send ? &frame->send_bytes : &frame->recv_bytes);
    wait_ns_ = load_relaxed(send ? &frame->send_wait_ns[0] : &frame->recv_wait_ns[0]);
    channel_count_ = load_relaxed(send ? &frame->channel[0].sends : &frame->channel[0].recvs);
    edge_count_ = load_relaxed(&edge->count);
    edge_bytes_ = load_relaxed(&edge->bytes);
    edge_wait_ns_ = load_relaxed(&edge->wait_ns);
  }

  // A slice is handed over, or asked for.
  __device__ void post() { store_relaxed(send_ ? &frame_->send_posted : &frame_->recv_posted, ++posted_); }

  __device__ void done(uint64_t bytes) {
    slices_++;
    store_relaxed(send_ ? &frame_->send_bytes : &frame_->recv_bytes, bytes_ += bytes);
    store_relaxed(send_ ? &frame_->channel[0].sends : &frame_->channel[0].recvs, ++channel_count_);
    store_relaxed(&edge_->bytes, edge_bytes_ += bytes);
    store_relaxed(&edge_->count, ++edge_count_);
    store_relaxed(send_ ? &frame_->send_count : &frame_->recv_count, ++count_);
  }

  __device__ void show(uint8_t state) {
    store_relaxed(send_ ? &frame_->channel[0].send_state : &frame_->channel[0].recv_state, state);
  }

  __device__ void begin_wait(uint64_t now_ns) {
    since_ns_ = told_ns_ = now_ns;
    stands_still_ = false;
    show(PACELINE_TRANSFER_STATE_PEER_WAIT);
  }
  __device__ void go_on_waiting(uint64_t now_ns) {
    if (now_ns - told_ns_ >= kTellNs) tell(now_ns);
  }
  __device__ void end_wait(uint64_t now_ns) {
    tell(now_ns);
    show(PACELINE_TRANSFER_STATE_MOVING);
  }

 private:
  __device__ void tell(uint64_t now_ns) {
    told_ns_ = now_ns;
    uint64_t wait_ns = now_ns - since_ns_;
    bool filled = slices_ >= fill_;
    stands_still_ |= wait_ns >= still_ns_;
    if (!filled && !stands_still_) return;
    since_ns_ = now_ns;
    if (filled) store_relaxed(send_ ? &frame_->send_wait_ns[0] : &frame_->recv_wait_ns[0], wait_ns_ += wait_ns);
    store_relaxed(&edge_->wait_ns, edge_wait_ns_ += wait_ns);
  }

  paceline_frame_v1* frame_;
  paceline_edge_v1* edge_;
  bool send_, stands_still_ = false;
  uint32_t fill_;
  uint64_t still_ns_;
  uint32_t slices_;  // of this operation
  uint32_t channel_count_;
  uint64_t posted_, count_, bytes_, wait_ns_, edge_count_, edge_bytes_, edge_wait_ns_;
  uint64_t since_ns_, told_ns_;
};

// The kernel has begun; `mark`: round of the operation, above bit 48 a number of the communicator.
__device__ inline void arrive(paceline_frame_v1* frame, uint64_t mark) {
  store_relaxed(&frame->gpu_tag, mark & ~kMarkRoundMask);
  store_relaxed(&frame->gpu_arrive, mark);
  store_relaxed(&frame->channel[0].kernel_state, uint8_t{1});
  store_relaxed(&frame->kernels_started, load_relaxed(&frame->kernels_started) + 1);
}

// And is through; `finished` false: it was told to stop.
__device__ inline void leave(paceline_frame_v1* frame, uint64_t mark, bool finished) {
  store_relaxed(&frame->channel[0].kernel_state, uint8_t{0});
  if (!finished) return;
  store_relaxed(&frame->kernels_done, load_relaxed(&frame->kernels_done) + 1);
  store_release(&frame->gpu_leave, mark);
}

}  // namespace paceline
