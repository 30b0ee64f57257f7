// All-reduce and broadcast along a ring, one block per rank, with flags in memory that both ends can reach.
//
// A link is a window of slices: its sender counts `posted`, its receiver `taken`, and each waits for the other's
// counter. What happens on a link is written into the frame of the block's rank (counters.cuh): a slice counts as
// sent when it lies in the window, and as received when it was taken out. Every wait ends when `stop` is set.
#include "counters.cuh"

namespace paceline {

struct Link {
  uint64_t posted;
  uint64_t pad0[7];  // the two ends write different cache lines
  uint64_t taken;
  uint64_t pad1[7];
};

// Of one rank; addresses as its GPU sees them.
struct Rank {
  float* data;
  Link *out, *in;
  float *out_slices, *in_slices;  // `window` slices each
  paceline_frame_v1* frame;
  paceline_edge_v1 *out_edge, *in_edge;
  uint64_t mark;
};

// The same for all blocks but for `first`, the place in the ring of block 0 of this launch.
struct Work {
  const Rank* ranks;
  uint64_t count;  // elements
  uint64_t still_ns;
  const uint32_t* stop;
  uint32_t size, slice, window, first, root, spare;
};
static_assert(sizeof(Link) == 128 && sizeof(Rank) == 72 && sizeof(Work) == 56, "paceline.collectives.cuda.memory");

class Block {
 public:
  __device__ Block(const Work& work, uint32_t place, uint32_t fill)
      : work_(work),
        rank_(work.ranks[place]),
        posted_(load_relaxed(&rank_.out->posted)),
        taken_(load_relaxed(&rank_.in->taken)),
        out_(rank_.frame, rank_.out_edge, true, fill, work.still_ns),
        in_(rank_.frame, rank_.in_edge, false, fill, work.still_ns) {}

  __device__ void begin() {
    if (!leads()) return;
    arrive(rank_.frame, rank_.mark);
    out_.show(PACELINE_TRANSFER_STATE_MOVING);
    in_.show(PACELINE_TRANSFER_STATE_MOVING);
  }

  __device__ void end(bool finished) {
    __syncthreads();
    if (!leads()) return;
    out_.show(PACELINE_TRANSFER_STATE_IDLE);
    in_.show(PACELINE_TRANSFER_STATE_IDLE);
    __threadfence_system();
    leave(rank_.frame, rank_.mark, finished);
  }

  // False where it was told to stop.
  __device__ bool send(uint64_t start) {
    uint32_t elements = elements_from(start);
    if (elements == 0) return true;
    uint64_t needed = posted_ + 1 > work_.window ? posted_ + 1 - work_.window : 0;
    if (!await(&out_, &rank_.out->taken, needed)) return false;
    float* slice = rank_.out_slices + posted_ % work_.window * work_.slice;
    for (uint32_t i = threadIdx.x; i < elements; i += blockDim.x) slice[i] = rank_.data[start + i];
    __threadfence_system();
    __syncthreads();
    posted_++;
    if (leads()) {
      out_.post();
      store_release(&rank_.out->posted, posted_);
      out_.done(elements * sizeof(float));
    }
    return true;
  }

  __device__ bool receive(uint64_t start, bool reduce) {
    uint32_t elements = elements_from(start);
    if (elements == 0) return true;
    if (leads()) in_.post();
    if (!await(&in_, &rank_.in->posted, taken_ + 1)) return false;
    const volatile float* slice = rank_.in_slices + taken_ % work_.window * work_.slice;
    for (uint32_t i = threadIdx.x; i < elements; i += blockDim.x) {
      rank_.data[start + i] = reduce ? rank_.data[start + i] + slice[i] : slice[i];
    }
    __syncthreads();
    taken_++;
    if (leads()) {
      store_release(&rank_.in->taken, taken_);
      in_.done(elements * sizeof(float));
    }
    return true;
  }

 private:
  __device__ static bool leads() { return threadIdx.x == 0; }

  __device__ uint32_t elements_from(uint64_t start) const {
    if (start >= work_.count) return 0;
    uint64_t left = work_.count - start;
    return left < work_.slice ? static_cast<uint32_t>(left) : work_.slice;
  }

  __device__ bool await(Side* side, const uint64_t* counter, uint64_t needed) {
    __shared__ bool go;
    if (leads()) go = poll(side, counter, needed);
    __syncthreads();
    bool answer = go;
    __syncthreads();  // before `go` is written again
    return answer;
  }

  __device__ bool poll(Side* side, const uint64_t* counter, uint64_t needed) const {
    if (load_acquire(counter) >= needed) return true;
    side->begin_wait(clock_ns());
    while (load_acquire(counter) < needed) {
      if (load_relaxed(work_.stop) != 0) return false;
      pause();
      side->go_on_waiting(clock_ns());
    }
    side->end_wait(clock_ns());
    return true;
  }

  const Work& work_;
  const Rank& rank_;
  uint64_t posted_, taken_;
  Side out_, in_;
};

// Each loop takes one slice per rank once around to be summed, and once more to be told.
__device__ inline bool all_reduce(Block* block, const Work& work, uint32_t place) {
  uint32_t size = work.size;
  for (uint64_t base = 0; base < work.count; base += uint64_t{size} * work.slice) {
    for (uint32_t step = 0; step < 2 * (size - 1); step++) {
      uint32_t mine = (place + 2 * size - step) % size, theirs = (place + 2 * size - step - 1) % size;
      if (!block->send(base + uint64_t{mine} * work.slice)) return false;
      if (!block->receive(base + uint64_t{theirs} * work.slice, step < size - 1)) return false;
    }
  }
  return true;
}

__device__ inline bool broadcast(Block* block, const Work& work, uint32_t place) {
  uint32_t behind_root = (place + work.size - work.root) % work.size;
  for (uint64_t start = 0; start < work.count; start += work.slice) {
    if (behind_root > 0 && !block->receive(start, false)) return false;
    if (behind_root + 1 < work.size && !block->send(start)) return false;
  }
  return true;
}

// Slices of an operation before waits count (docs/adr/0022): what it takes to fill a ring, at most half of them.
__device__ inline uint32_t fill_of(uint64_t slices, uint32_t first) {
  return slices / 2 < first ? static_cast<uint32_t>(slices / 2) : first;
}

}  // namespace paceline

extern "C" __global__ void paceline_ring_all_reduce(const paceline::Work* work) {
  uint32_t place = work->first + blockIdx.x;
  uint64_t slices = (work->count + work->slice - 1) / work->slice * 2 * (work->size - 1) / work->size;
  paceline::Block block(*work, place, paceline::fill_of(slices, work->size + 1));
  block.begin();
  block.end(work->size < 2 || paceline::all_reduce(&block, *work, place));
}

extern "C" __global__ void paceline_ring_broadcast(const paceline::Work* work) {
  uint32_t place = work->first + blockIdx.x;
  paceline::Block block(*work, place, paceline::fill_of((work->count + work->slice - 1) / work->slice, work->window));
  block.begin();
  block.end(work->size < 2 || paceline::broadcast(&block, *work, place));
}

#ifdef PACELINE_HOST
extern "C" void paceline_host_block(int kernel, uint32_t block, const paceline::Work* work) {
  blockIdx.x = block;
  paceline_barriers = 0;
  kernel == 0 ? paceline_ring_all_reduce(work) : paceline_ring_broadcast(work);
}
#endif
