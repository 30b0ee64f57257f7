// From the blocks of one page, as `Mapping.read` has copied and cleaned them, to the rows of a record. Pure.
//
// One pass over what a process holds in place of some fifty of numpy: at one sample a second code and data are
// no longer in the caches, and a pass costs what it touches (docs/adr/0007-native-binding.md).
#include "reduction.h"

#include <new>

namespace paceline {
namespace {

constexpr uint64_t kRoundMask = (uint64_t{1} << PACELINE_MARK_ROUND_BITS) - 1;

enum EdgesWanted { kNoEdges, kWaitingEdges, kAllEdges };

struct Tables {
  ProcessRow process{};
  std::vector<StateRow> states;
  std::vector<RoundRow> rounds;
  std::vector<EdgeRow> edges;
  std::vector<PeerRow> peers;
};

// What is said of the operation comes from the head's own entry where that is still in the ring.
void describe_head(StateRow* row, const Block& block) {
  if (row->head_round == 0) return;
  for (const Round& entry : block.rounds) {
    if (entry.round != row->head_round || !is_collective(entry) || entry.state == PACELINE_OP_STATE_EMPTY) continue;
    put_operation(row, entry);
    row->head_issue = entry.issue;
    return;
  }
}

StateRow state_of(const Block& block, const Process& header, uint32_t rank, const Sample& sample) {
  const Frame& frame = block.frame;
  StateRow row{};
  put_identity(&row, frame, rank);
  row.entered = frame.round;
  row.completed = frame.completed;
  row.head_round = frame.head_round;
  row.head_signature = frame.head_signature;
  row.send_count = frame.send_count;
  row.recv_count = frame.recv_count;
  row.open_ops = static_cast<uint16_t>(std::min<uint32_t>(frame.open_ops, UINT16_MAX));
  row.flags = static_cast<uint16_t>(frame.flags & ~uint32_t{PACELINE_FRAME_FLAG_KERNEL_STARTED});
  if (frame.kernels_started > 0) row.flags |= PACELINE_FRAME_FLAG_KERNEL_STARTED;
  put_operation(&row, frame);
  row.sources = frame.sources;
  uint64_t head_ns = frame.head_round > 0 ? frame.head_entered_ns : 0;
  row.head_age_ms = age_ms(sample, head_ns);
  // A communicator that never progressed has been idle since its first open round, or since it exists.
  row.idle_ms = age_ms(sample, frame.progress_ns > 0 ? frame.progress_ns : head_ns > 0 ? head_ns : header.created_ns);
  describe_head(&row, block);
  return row;
}

void add_edges(const Block& block, uint32_t rank, uint64_t wanted, std::vector<EdgeRow>* rows) {
  uint8_t send_state = 0, recv_state = 0;
  for (const auto& channel : block.frame.channel) {
    send_state = std::max(send_state, channel.send_state);
    recv_state = std::max(recv_state, channel.recv_state);
  }
  for (const Edge& edge : block.edges) {
    if (!is_used(edge) || (edge.count == 0 && edge.bytes == 0 && edge.wait_ns == 0)) continue;
    if (wanted == kWaitingEdges && edge.wait_ns == 0) continue;
    EdgeRow row{};
    put_identity(&row, block.frame, rank);
    row.peer = edge.peer;
    row.group = edge.group;
    row.direction = edge.direction;
    row.count = edge.count;
    row.bytes = edge.bytes;
    row.wait_ns = edge.wait_ns;
    // A channel has one neighbour on each side of a ring, and several in a tree.
    if (edge.group == 0) row.state = edge.direction == 0 ? send_state : recv_state;
    rows->push_back(row);
  }
}

void add_peers(const Block& block, uint32_t rank, const Sample& sample, std::vector<PeerRow>* rows) {
  for (uint32_t place = 0; place < peers_in_use(block.frame); place++) {
    const Peer& peer = block.peers[place];
    if (!is_used(peer)) continue;
    PeerRow row{};
    put_identity(&row, block.frame, rank);
    row.peer = peer.peer;
    row.flags = peer.flags;
    for (int at = 0; at < 2; at++) {
      row.posted[at] = peer.posted[at];
      row.completed[at] = peer.completed[at];
      row.head_signature[at] = peer.head_signature[at];
      row.head_issue[at] = peer.head_issue[at];
      // 0 means 'nothing open', so an open operation is at least 1 ms old.
      if (peer.head_seq[at] > 0) row.head_age_ms[at] = std::max(age_ms(sample, peer.head_entered_ns[at]), 1u);
    }
    rows->push_back(row);
  }
}

using Wide = unsigned __int128;  // a hostile page's counters overflow 64 bits

// Time in completed collectives and receives; sends are left out, they run beside computation.
uint32_t waited_ms(const Block* blocks, size_t count) {
  uint64_t collectives_ns = 0, receives_ns = 0;
  for (const Block* block = blocks; block != blocks + count; block++) {
    uint64_t total_ns = 0;
    for (uint32_t place = 0; place < kRing; place++) {  // other entries hold the total of their pair
      if (is_collective(block->rounds[place])) total_ns = std::max(total_ns, block->times[place].total_ns);
    }
    collectives_ns += total_ns;
    for (uint32_t place = 0; place < peers_in_use(block->frame); place++) {
      if (is_used(block->peers[place])) receives_ns += block->peers[place].total_ns[1];
    }
  }
  return static_cast<uint32_t>((Wide{collectives_ns} + receives_ns) / kNsPerMs);
}

// What the page says; what the agent knows without it is in the row already.
void describe_process(const Process& header, const Block* blocks, size_t count, const Sample& sample,
                      ProcessRow* row) {
  row->step = header.step;
  row->issued = header.issued;
  row->paced_ms = header.paced_ns / kNsPerMs;
  row->native_age_ms = age_ms(sample, header.native_beat_ns);
  row->python_age_ms = age_ms(sample, header.python_beat_ns);
  row->phase_age_ms = age_ms(sample, header.phase_entered_ns);
  row->step_age_ms = age_ms(sample, header.step_entered_ns);
  row->phase = static_cast<uint8_t>(header.phase);
  row->host_wait = static_cast<uint8_t>(header.host_wait);
  row->host_wait_rank = header.host_wait != 0 ? header.host_wait_rank : -1;
  row->host_wait_age_ms = header.host_wait != 0 ? age_ms(sample, header.host_wait_entered_ns) : 0;
  row->communicators = static_cast<uint16_t>(count);
  row->finished = header.finished != 0;
  Wide unrecorded = Wide{header.communicators_dropped} + header.operations_dropped + header.errors;
  row->dropped = static_cast<uint32_t>(std::min<Wide>(unrecorded, UINT32_MAX));
  row->waited_ms = waited_ms(blocks, count);
}

void reduce(const Process& header, const Block* blocks, size_t count, const Sample& sample, Tables* tables) {
  const uint32_t rank = tables->process.rank;
  describe_process(header, blocks, count, sample, &tables->process);
  tables->states.reserve(count);
  for (const Block* block = blocks; block != blocks + count; block++) {
    const StateRow state = state_of(*block, header, rank, sample);
    tables->states.push_back(state);
    bool still = sample.gone || std::max(state.head_age_ms, state.idle_ms) >= sample.suspect_ms;
    add_rounds(*block, rank, sample, still, &tables->rounds);
    if (sample.detail) add_peers(*block, rank, sample, &tables->peers);
    if (sample.edges != kNoEdges) add_edges(*block, rank, sample.edges, &tables->edges);
  }
  keep_once(&tables->rounds);
}

struct Blocks {
  const Block* first = nullptr;
  size_t count = 0;
};

// False, with an exception, where `object` is not what `Mapping.read` gives.
bool to_blocks(PyObject* object, Blocks* blocks) {
  if (!PyByteArray_Check(object) || static_cast<size_t>(PyByteArray_Size(object)) % sizeof(Block) != 0) {
    PyErr_Format(PyExc_TypeError, "expected a bytearray of blocks of %zu bytes", sizeof(Block));
    return false;
  }
  blocks->first = reinterpret_cast<const Block*>(PyByteArray_AsString(object));
  blocks->count = static_cast<size_t>(PyByteArray_Size(object)) / sizeof(Block);
  return true;
}

template <class Row>
PyObject* bytes_of(const std::vector<Row>& rows) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(rows.data()),
                                   static_cast<Py_ssize_t>(rows.size() * sizeof(Row)));
}

// reduce_page(header, blocks, rank, pid, pid_start, cpu_ms, context_switches, process_state, exit_kind,
// exit_code, flags, now_ns, since_ns, suspect_ms, kept_max, open_max, recent_max, gone, detail, edges) ->
// (process, states, rounds, edges, peers), rows as bytes
PyObject* reduce_page(PyObject*, Arguments arguments, Py_ssize_t count) {
  Blocks blocks;
  if (count < 2 || !PyBytes_Check(arguments[0]) || PyBytes_Size(arguments[0]) != sizeof(Process)) {
    return PyErr_Format(PyExc_TypeError, "reduce_page takes a header and blocks");
  }
  if (!to_blocks(arguments[1], &blocks)) return nullptr;
  Tables tables;
  Sample sample;
  ProcessRow& process = tables.process;
  Reader read(arguments + 2, count - 2);
  process.rank = static_cast<uint32_t>(read.number());
  process.pid = static_cast<uint32_t>(read.number());
  process.pid_start = read.number();
  process.cpu_ms = read.number();
  process.context_switches = static_cast<uint32_t>(read.number());
  process.process_state = static_cast<uint8_t>(read.number());
  process.exit_kind = static_cast<uint8_t>(read.number());
  process.exit_code = static_cast<int32_t>(read.number());
  process.flags = static_cast<uint8_t>(read.number());
  sample.now_ns = read.number();
  sample.since_ns = read.number();
  sample.suspect_ms = static_cast<uint32_t>(read.number());
  sample.kept_max = static_cast<uint32_t>(read.number());
  sample.open_max = static_cast<uint32_t>(read.number());
  sample.recent_max = static_cast<uint32_t>(read.number());
  sample.gone = read.number() != 0;
  sample.detail = read.number() != 0;
  sample.edges = read.number();
  if (!read.complete()) return PyErr_Format(PyExc_TypeError, "reduce_page takes 18 integers");
  try {
    const auto* header = reinterpret_cast<const Process*>(PyBytes_AsString(arguments[0]));
    reduce(*header, blocks.first, blocks.count, sample, &tables);
    return Py_BuildValue("(y#NNNN)", reinterpret_cast<const char*>(&process), static_cast<Py_ssize_t>(sizeof process),
                         bytes_of(tables.states), bytes_of(tables.rounds), bytes_of(tables.edges),
                         bytes_of(tables.peers));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

uint64_t older(uint64_t oldest_ns, uint64_t stamp_ns) {
  return stamp_ns > 0 && (oldest_ns == 0 || stamp_ns < oldest_ns) ? stamp_ns : oldest_ns;
}

// find_heads(blocks) -> (head_ns, observed_head_ns, peer_head_ns, entered_ns): when the oldest open round was
// entered, the oldest whose completion would be seen, the oldest open message, and the newest operation at all.
// 0 = none; closed communicators have no rounds.
PyObject* find_heads(PyObject*, PyObject* object) {
  Blocks blocks;
  if (!to_blocks(object, &blocks)) return nullptr;
  uint64_t head_ns = 0, observed_ns = 0, peer_ns = 0, entered_ns = 0;
  for (const Block* block = blocks.first; block != blocks.first + blocks.count; block++) {
    const Frame& frame = block->frame;
    if ((frame.flags & PACELINE_FRAME_FLAG_CLOSED) == 0) {
      uint64_t head = frame.head_round > 0 ? frame.head_entered_ns : 0;
      head_ns = older(head_ns, head);
      if ((frame.flags & PACELINE_FRAME_FLAG_COMPLETION_UNOBSERVABLE) == 0) observed_ns = older(observed_ns, head);
      entered_ns = std::max(entered_ns, frame.entered_ns);
    }
    for (uint32_t place = 0; place < peers_in_use(frame); place++) {
      const Peer& peer = block->peers[place];
      for (int at = 0; is_used(peer) && at < 2; at++) {
        if (peer.head_seq[at] > 0) peer_ns = older(peer_ns, peer.head_entered_ns[at]);
      }
    }
  }
  return Py_BuildValue("(KKKK)", head_ns, observed_ns, peer_ns, entered_ns);
}

// has_marks(blocks): whether a GPU marks how far it has come in one of them.
PyObject* has_marks(PyObject*, PyObject* object) {
  Blocks blocks;
  if (!to_blocks(object, &blocks)) return nullptr;
  for (const Block* block = blocks.first; block != blocks.first + blocks.count; block++) {
    if (block->frame.gpu_tag != 0 && (block->frame.gpu_tag & kRoundMask) == 0) Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

PyMethodDef functions[] = {
    fast_method("reduce_page", reduce_page),
    {"find_heads", find_heads, METH_O, nullptr},
    {"has_marks", has_marks, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_reduction(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace paceline
