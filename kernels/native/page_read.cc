// `Mapping.read`: a whole page in one call, every code within its vocabulary and every rank within its
// communicator. The page is hostile; what is no frame is refused by name, and the time is bounded.
#include <algorithm>
#include <cstring>
#include <vector>

#include "block.h"
#include "mapping.h"

namespace paceline {
namespace {

constexpr int kSpinsMax = 32;
constexpr int kRelaxPerSpin = 64;
constexpr long kSleepNs = 50000;
constexpr uint64_t kTriesMax = 64;  // 32 spins of about 1 us, then 32 sleeps of 50 us: about 2 ms
constexpr int kTornMax = 4;         // per reading; later blocks are hurried, so a reading stays below 20 ms
constexpr uint64_t kTriesHurried = 2;
constexpr uint32_t kRanksMax = 1u << 24;
constexpr int32_t kNobody = -1, kAnySource = -2;

enum Amount { kHeader, kFrames, kDetails, kAmounts };

// Where `value` stands in place of `expected`, a number or a bound.
struct Fault {
  int slot;  // -1: the header
  const char* field;
  uint64_t value, expected;
};

void copy_ranges(const MappingObject* mapping, const Range (&ranges)[2], char* target) {
  for (const Range& range : ranges) {
    get_words(target, mapping->address + range.offset, range.length);
    target += range.length;
  }
}

template <class T>
void clear_unknown(T& code, int code_max) {
  if (code > static_cast<T>(code_max)) code = 0;
}

template <class T>  // a frame or an entry of a ring
void clean_codes(T& row, uint32_t ranks) {
  clear_unknown(row.function, PACELINE_FUNCTION_LAST);
  clear_unknown(row.dtype, PACELINE_DTYPE_LAST);
  clear_unknown(row.reduce_op, PACELINE_REDUCE_OP_LAST);
  clear_unknown(row.algorithm, PACELINE_ALGORITHM_LAST);
  clear_unknown(row.protocol, PACELINE_PROTOCOL_LAST);
  clear_unknown(row.state, PACELINE_OP_STATE_LAST);
  clear_unknown(row.kind, PACELINE_OP_KIND_LAST);
  if (row.peer < kAnySource || row.peer >= static_cast<int32_t>(ranks)) row.peer = kNobody;
}

void clean_frame(Frame* frame, bool whole) {
  clean_codes(*frame, frame->nranks);
  bool contradicts = frame->completed > frame->enqueued || frame->enqueued > frame->started ||
                     frame->head_round > frame->round;
  if (!whole || contradicts) frame->flags |= PACELINE_FRAME_FLAG_PARTIAL;
}

void clean_detail(Block* block) {
  auto ranks = static_cast<int32_t>(block->frame.nranks);
  for (auto& entry : block->rounds) clean_codes(entry, block->frame.nranks);
  for (auto& edge : block->edges) {
    if (edge.peer >= ranks || edge.group > 2 || edge.direction > 1) edge.peer = kNobody;
  }
  for (uint32_t at = 0; at < peers_in_use(block->frame); at++) {
    Peer& row = block->peers[at];
    if (row.peer < kAnySource || row.peer == kNobody || row.peer >= ranks) row.posted[0] = row.posted[1] = 0;
  }
}

bool check_header(const Process& header, std::vector<Fault>* faults) {
  const Fault checks[] = {
      {-1, "magic", header.magic, PACELINE_PAGE_MAGIC},
      {-1, "version", header.version, PACELINE_LAYOUT_VERSION},
      {-1, "header_bytes", header.header_bytes, sizeof(header)},
      {-1, "page_bytes", header.page_bytes, PACELINE_PAGE_BYTES},
  };
  for (const Fault& check : checks) {
    if (check.value != check.expected) faults->push_back(check);
  }
  return faults->empty();
}

bool check_frame(const Frame& frame, int slot, std::vector<Fault>* faults) {
  const Fault checks[] = {
      {slot, "magic", frame.magic, PACELINE_FRAME_MAGIC},
      {slot, "version", frame.version, PACELINE_LAYOUT_VERSION},
      {slot, "frame_bytes", frame.frame_bytes, sizeof(frame)},
      {slot, "slot", frame.slot, static_cast<uint64_t>(slot)},
  };
  for (const Fault& check : checks) {
    if (check.value != check.expected) {
      faults->push_back(check);
      return false;
    }
  }
  if (frame.nranks == 0 || frame.nranks > kRanksMax) {
    faults->push_back({slot, "nranks", frame.nranks, kRanksMax});
  } else if (frame.comm_rank >= frame.nranks) {
    faults->push_back({slot, "comm_rank", frame.comm_rank, frame.nranks});
  } else if (frame.comm == 0) {
    faults->push_back({slot, "comm", 0, 0});
  } else {
    return true;
  }
  return false;
}

enum class Copied { kRefused, kTorn, kWhole };

class PageCopy {
 public:
  explicit PageCopy(const MappingObject* mapping) : mapping_(mapping) {}

  // Whether it was not torn.
  bool header(Process* target) const {
    const Range ranges[2] = {{0, sizeof(*target)}, {0, 0}};
    bool whole = copy_locked(mapping_, offsetof(Process, lock), ranges,
                             reinterpret_cast<char*>(target), kTriesMax);
    clear_unknown(target->phase, PACELINE_PHASE_LAST);
    clear_unknown(target->host_wait, PACELINE_HOST_WAIT_LAST);
    return whole;
  }

  bool is_open(int slot) const {
    return get(*reinterpret_cast<const uint64_t*>(mapping_->address + frame_at(slot))) != 0;
  }

  // Copies and cleans one slot; of `target` only the frame where `detail` is false.
  Copied slot(int slot, bool detail, Block* target, std::vector<Fault>* faults) {
    const uint64_t frame = frame_at(slot), lock = frame + offsetof(Frame, lock);
    const uint64_t behind = PACELINE_DETAIL_OFFSET + static_cast<uint64_t>(slot) * PACELINE_DETAIL_STRIDE;
    const uint64_t tries = torn_ >= kTornMax ? kTriesHurried : kTriesMax;
    // Read before the copy: a first message that comes between them waits for the next reading.
    const bool peers = get(reinterpret_cast<const Frame*>(mapping_->address + frame)->p2p_started) > 0;
    const uint64_t length = peers ? kDetailBytes : kDetailBytes - kPeersBytes;
    const Range both[2] = {{frame, sizeof(target->frame)}, {behind, detail ? length : 0}};
    char* bytes = reinterpret_cast<char*>(target);
    bool whole = copy_locked(mapping_, lock, both, bytes, tries), frame_whole = whole;
    if (!whole && detail) {
      // A busy writer tears the 45 kB long before it tears the frame.
      const Range alone[2] = {{frame, sizeof(target->frame)}, {0, 0}};
      frame_whole = copy_locked(mapping_, lock, alone, bytes, tries);
    }
    torn_ += !whole;
    if (!check_frame(target->frame, slot, faults)) return Copied::kRefused;
    clean_frame(&target->frame, frame_whole);
    if (detail && !peers) memset(target->peers, 0, kPeersBytes);
    if (detail) clean_detail(target);
    return whole ? Copied::kWhole : Copied::kTorn;
  }

 private:
  static uint64_t frame_at(int slot) {
    return PACELINE_FRAMES_OFFSET + static_cast<uint64_t>(slot) * PACELINE_FRAME_STRIDE;
  }

  const MappingObject* mapping_;
  int torn_ = 0;
};

PyObject* list_of(const std::vector<Fault>& faults) {
  PyObject* list = PyList_New(0);
  for (const Fault& fault : faults) {
    PyObject* item = Py_BuildValue("(isKK)", fault.slot, fault.field, fault.value, fault.expected);
    if (list != nullptr && (item == nullptr || PyList_Append(list, item) != 0)) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

}  // namespace

bool copy_locked(const MappingObject* mapping, uint64_t lock_offset, const Range (&ranges)[2], char* target,
                 uint64_t tries) {
  const auto& lock = *reinterpret_cast<const uint32_t*>(mapping->address + lock_offset);
  for (uint64_t i = 0; i < tries; i++) {
    uint32_t before = __atomic_load_n(&lock, __ATOMIC_ACQUIRE);
    if ((before & 1u) == 0) {
      copy_ranges(mapping, ranges, target);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (get(lock) == before) return true;
    }
    if (i < kSpinsMax) {
      for (int relax = 0; relax < kRelaxPerSpin; relax++) cpu_relax();
      continue;
    }
    timespec pause{0, kSleepNs};
    Py_BEGIN_ALLOW_THREADS
    nanosleep(&pause, nullptr);
    Py_END_ALLOW_THREADS
  }
  copy_ranges(mapping, ranges, target);
  return false;
}

// read(amount) -> (header, whole, blocks, torn, faults). `blocks` holds a frame, or a Block, for each slot
// that is in use and not refused; `torn` a byte for each of them. A bad header is the only fault then.
PyObject* mapping_read(PyObject* self, Arguments arguments, Py_ssize_t count) {
  MappingObject* mapping = mapping_of(self);
  uint64_t amount;
  if (count != 1 || !to_u64(arguments[0], &amount) || amount >= kAmounts) {
    return PyErr_Format(PyExc_TypeError, "read takes 0, 1 or 2");
  }
  if (mapping->address == nullptr || mapping->closing) return PyErr_Format(PyExc_ValueError, "the mapping is closed");
  if (mapping->bytes < PACELINE_PAGE_BYTES) return PyErr_Format(PyExc_ValueError, "the mapping is no page");
  MappingUse use(mapping);
  PageCopy page(mapping);
  const size_t stride = amount == kDetails ? sizeof(Block) : sizeof(Frame);
  int slots[PACELINE_COMMUNICATORS_MAX], open = 0;
  if (amount != kHeader) {
    for (int slot = 0; slot < static_cast<int>(PACELINE_COMMUNICATORS_MAX); slot++) {
      if (page.is_open(slot)) slots[open++] = slot;
    }
  }
  PyObject* header = PyByteArray_FromStringAndSize(nullptr, sizeof(Process));
  PyObject* blocks = PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(stride) * open);
  PyObject *torn = nullptr, *refused = nullptr, *result = nullptr;
  if (header != nullptr && blocks != nullptr) {
    std::vector<Fault> faults;
    char torn_bytes[PACELINE_COMMUNICATORS_MAX];
    int taken = 0;
    auto* head = reinterpret_cast<Process*>(PyByteArray_AsString(header));
    bool whole = page.header(head);
    if (check_header(*head, &faults)) {
      char* at = PyByteArray_AsString(blocks);
      for (int i = 0; i < open; i++) {
        auto* block = reinterpret_cast<Block*>(at + stride * static_cast<size_t>(taken));
        Copied copied = page.slot(slots[i], amount == kDetails, block, &faults);
        if (copied != Copied::kRefused) torn_bytes[taken++] = copied == Copied::kTorn;
      }
    }
    torn = PyBytes_FromStringAndSize(torn_bytes, taken);
    refused = list_of(faults);
    const auto bytes = static_cast<Py_ssize_t>(stride) * taken;
    if (torn != nullptr && refused != nullptr && PyByteArray_Resize(blocks, bytes) == 0) {
      result = PyTuple_Pack(5, header, whole ? Py_True : Py_False, blocks, torn, refused);
    }
  }
  Py_XDECREF(header);
  Py_XDECREF(blocks);
  Py_XDECREF(torn);
  Py_XDECREF(refused);
  return result;
}

}  // namespace paceline
