// Newest rows into the tables of a detector: what numpy does in a dozen passes over memory, in one.
//
// Addresses come from arrays that the caller holds (`paceline.detector.placing`); the limited API of Python
// 3.10 has no buffers. Nothing is written unless every row is where the caller's cache says it is, so that a
// refusal leaves the tables as they were and the slow way can begin. Layouts: contracts/batch.py.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "rows.h"

namespace paceline {
namespace {

constexpr uint8_t kStillMax = 255;
constexpr uint64_t kNotKept = UINT64_MAX;
constexpr int kRoundBits = 48;

struct States {
  const StateRow* rows;
  int64_t count;
  const int64_t* positions;
  int64_t members;
  StateRow* newest;
  uint64_t *completed, *head_round;
  uint32_t *idle_ms, *head_age_ms;
  uint16_t* flags;
  uint8_t* still;
  int64_t *seen_ns, now_ns;
};

// Marks each row's member as visited by turning the bits of its time, which is never negative. False, with
// all marks taken back, where a row is another member's or a member comes twice.
bool visit(const States& to) {
  int64_t at = 0;
  for (; at < to.count; at++) {
    int64_t position = to.positions[at];
    if (position < 0 || position >= to.members) break;
    const StateRow& known = to.newest[position];
    if (known.comm != to.rows[at].comm || known.rank != to.rows[at].rank || to.seen_ns[position] < 0) break;
    to.seen_ns[position] = ~to.seen_ns[position];
  }
  if (at == to.count) return true;
  while (at-- > 0) to.seen_ns[to.positions[at]] = ~to.seen_ns[to.positions[at]];
  return false;
}

// place_states(rows, count, positions, members, newest, completed, head_round, idle_ms, head_age_ms, flags,
// still, seen_ns, now_ns)
PyObject* place_states(PyObject*, Arguments arguments, Py_ssize_t count) {
  Reader read(arguments, count);
  States to;
  to.rows = read.array<const StateRow>();
  to.count = static_cast<int64_t>(read.number());
  to.positions = read.array<const int64_t>();
  to.members = static_cast<int64_t>(read.number());
  to.newest = read.array<StateRow>();
  to.completed = read.array<uint64_t>();
  to.head_round = read.array<uint64_t>();
  to.idle_ms = read.array<uint32_t>();
  to.head_age_ms = read.array<uint32_t>();
  to.flags = read.array<uint16_t>();
  to.still = read.array<uint8_t>();
  to.seen_ns = read.array<int64_t>();
  to.now_ns = static_cast<int64_t>(read.number());
  if (!read.complete()) return PyErr_Format(PyExc_TypeError, "place_states takes 13 integers");
  if (!visit(to)) Py_RETURN_FALSE;
  for (int64_t at = 0; at < to.count; at++) {
    int64_t position = to.positions[at];
    const StateRow& row = to.rows[at];
    StateRow& known = to.newest[position];
    bool moved = row.completed != known.completed || row.head_round != known.head_round ||
                 row.send_count + row.recv_count != known.send_count + known.recv_count ||
                 row.idle_ms < known.idle_ms || to.seen_ns[position] == ~int64_t{0};
    uint8_t still = to.still[position];
    to.still[position] = moved ? 0 : static_cast<uint8_t>(still + (still < kStillMax));
    to.completed[position] = row.completed;
    to.head_round[position] = row.head_round;
    to.idle_ms[position] = row.idle_ms;
    to.head_age_ms[position] = row.head_age_ms;
    to.flags[position] = row.flags;
    to.seen_ns[position] = to.now_ns;
    known = row;
  }
  Py_RETURN_TRUE;
}

struct Rounds {
  const RoundRow* rows;
  int64_t count;
  const int64_t* sent;
  int64_t sent_count, members, comms, cells;
  const uint64_t* comm;
  const uint32_t* rank;
  const int64_t *group, *starts;
  float *duration, *gap;
  uint32_t *send_wait, *recv_wait;
  uint64_t *number, *operations;
  uint8_t *function, *dtype, *reduce_op, *path;
  int64_t* since_ns;
  bool *judged, *touched;
  uint64_t* best;
  int64_t now_ns, pending_ns;
  uint8_t completed, collective, newest_only;
};

struct Place {
  const RoundRow* row;
  int64_t position, cell, flat;
  bool wants;
};

// Where each usable row belongs; false where `sent` does not name the members of the rows.
bool find_places(const Rounds& to, std::vector<Place>* places) {
  int64_t head = -1;
  for (int64_t at = 0; at < to.count; at++) {
    const RoundRow& row = to.rows[at];
    if (at == 0 || row.comm != to.rows[at - 1].comm || row.rank != to.rows[at - 1].rank) {
      if (++head >= to.sent_count) return false;
      int64_t found = to.sent[head];
      if (found < 0 || found >= to.members || to.comm[found] != row.comm || to.rank[found] != row.rank) return false;
    }
    if (row.round == 0 || row.duration_ns == 0 || row.state != to.completed || row.kind != to.collective ||
        row.level == to.newest_only) {
      continue;
    }
    int64_t position = to.sent[head];
    int64_t cell = static_cast<int64_t>(row.round % static_cast<uint64_t>(to.cells));
    int64_t flat = cell * to.comms + to.group[position];
    bool free = to.judged[flat] || to.now_ns - to.since_ns[flat] > to.pending_ns;
    places->push_back({&row, position, cell, flat, free && row.round > to.number[flat]});
  }
  return head + 1 == to.sent_count;
}

uint64_t coarseness(const RoundRow& row) {
  return (uint64_t{255} - row.level) << kRoundBits | (row.round & ((uint64_t{1} << kRoundBits) - 1));
}

// Gives free cells to rounds that are not in the window yet; the coarsest level wins, then the oldest.
void claim(const Rounds& to, const std::vector<Place>& places) {
  for (const Place& place : places) {
    if (place.wants) to.best[place.flat] = kNotKept;
  }
  for (const Place& place : places) {
    if (place.wants) to.best[place.flat] = std::min(to.best[place.flat], coarseness(*place.row));
  }
  for (const Place& place : places) {
    if (!place.wants || to.best[place.flat] != coarseness(*place.row)) continue;
    int64_t flat = place.flat;
    if (to.judged[flat] || to.since_ns[flat] != to.now_ns) {  // the first of its members
      int64_t comm = to.group[place.position];
      float* durations = to.duration + place.cell * to.members;
      std::fill(durations + to.starts[comm], durations + to.starts[comm + 1], 0.0f);
      to.since_ns[flat] = to.now_ns;
      to.judged[flat] = false;
    }
    to.number[flat] = place.row->round;
    to.operations[flat] = place.row->count;
    to.function[flat] = place.row->function;
    to.dtype[flat] = place.row->dtype;
    to.reduce_op[flat] = place.row->reduce_op;
    to.path[flat] = place.row->path;
  }
}

// Returns how many rows found no cell.
int64_t fill(const Rounds& to, const std::vector<Place>& places) {
  int64_t dropped = 0;
  for (const Place& place : places) {
    if (to.number[place.flat] != place.row->round) {
      dropped++;
      continue;
    }
    int64_t at = place.cell * to.members + place.position;
    to.duration[at] = static_cast<float>(place.row->duration_ns);
    to.gap[at] = static_cast<float>(place.row->gap_ns);
    to.send_wait[at] = place.row->send_wait_us;
    to.recv_wait[at] = place.row->recv_wait_us;
    to.touched[place.cell] = true;
  }
  return dropped;
}

// place_rounds(...): in the order of `Rounds`. Rows without a cell, -1 where nothing has been done.
PyObject* place_rounds(PyObject*, Arguments arguments, Py_ssize_t count) {
  Reader read(arguments, count);
  Rounds to;
  to.rows = read.array<const RoundRow>();
  to.count = static_cast<int64_t>(read.number());
  to.sent = read.array<const int64_t>();
  to.sent_count = static_cast<int64_t>(read.number());
  to.members = static_cast<int64_t>(read.number());
  to.comms = static_cast<int64_t>(read.number());
  to.cells = static_cast<int64_t>(read.number());
  to.comm = read.array<const uint64_t>();
  to.rank = read.array<const uint32_t>();
  to.group = read.array<const int64_t>();
  to.starts = read.array<const int64_t>();
  to.duration = read.array<float>();
  to.gap = read.array<float>();
  to.send_wait = read.array<uint32_t>();
  to.recv_wait = read.array<uint32_t>();
  to.number = read.array<uint64_t>();
  to.operations = read.array<uint64_t>();
  to.function = read.array<uint8_t>();
  to.dtype = read.array<uint8_t>();
  to.reduce_op = read.array<uint8_t>();
  to.path = read.array<uint8_t>();
  to.since_ns = read.array<int64_t>();
  to.judged = read.array<bool>();
  to.touched = read.array<bool>();
  to.best = read.array<uint64_t>();
  to.now_ns = static_cast<int64_t>(read.number());
  to.pending_ns = static_cast<int64_t>(read.number());
  to.completed = static_cast<uint8_t>(read.number());
  to.collective = static_cast<uint8_t>(read.number());
  to.newest_only = static_cast<uint8_t>(read.number());
  if (!read.complete()) return PyErr_Format(PyExc_TypeError, "place_rounds takes 30 integers");
  if (to.cells <= 0) return PyLong_FromLong(-1);
  try {
    std::vector<Place> places;
    places.reserve(static_cast<size_t>(to.count));
    if (!find_places(to, &places)) return PyLong_FromLong(-1);
    claim(to, places);
    return PyLong_FromLongLong(fill(to, places));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyMethodDef functions[] = {
    fast_method("place_states", place_states),
    fast_method("place_rounds", place_rounds),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_intake(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace paceline
