// Private state of a page. What readers see is in the memfd; what only this process needs is here.
#pragma once

#include <pthread.h>

#include "atomics.h"
#include "block.h"
#include "memfd.h"
#include "paceline/page_v1.h"

namespace paceline {

using Control = paceline_control_page_v1;

constexpr uint16_t kNone = 0xffff;
constexpr uint16_t kUnrecorded = 0x3ff;  // node index of a ticket whose operation is only counted
constexpr uint32_t kSend = 0, kReceive = 1;
static_assert(PACELINE_OPEN_OPS_MAX < kUnrecorded, "a ticket has ten bits for the node");
static_assert(PACELINE_FRAME_STRIDE % 64 == 0 && PACELINE_DETAIL_STRIDE % 64 == 0, "cache lines");

constexpr uint32_t kPeerSlots = 4;

// Counters of a frame when an operation started; what the operation itself did is the difference.
struct Traffic {
  uint64_t send_count, recv_count, send_wait_ns, recv_wait_ns;
};

// One operation in flight, in the list of its head of line: all collectives, or one direction of one peer.
struct Node {
  Round entry;
  uint64_t bytes;
  uint64_t generation;  // grows when the node is taken; a ticket of an earlier use is stale
  uint64_t pair_seq;
  uint64_t kernel_ns;  // its first kernel started, 0 where nobody saw one
  Traffic before;
  uint32_t step;
  uint16_t previous, next;
  uint16_t list;                  // 0 collectives, 1 + 2 * peer row + direction, kNone
  uint16_t ring;                  // entry in the page, kNone where the ring had no free one
  uint8_t kept[kKeptLevelCount];  // place in each kept level, 0xff where it is not kept
  bool open, returned;
};

struct List {
  uint16_t head, tail;
};

constexpr uint32_t kListCount = 1 + 2 * PACELINE_PEERS_MAX;

struct Communicator {
  std::mutex mutex;
  bool open;
  uint32_t slot;
  uint32_t incarnation;
  uint64_t closed_order;
  uint64_t untracked[2];  // operations in flight beyond the nodes: collectives, point-to-point
  uint64_t completed_ns;  // previous completion of a collective
  uint64_t total_ns;
  uint64_t pair_completed_ns[PACELINE_PEERS_MAX][2];
  uint64_t kept_entered[kKeptLevelCount];
  uint16_t free_node;
  uint32_t reusable_first, reusable_count;
  uint8_t reusable[PACELINE_ROUNDS_NEWEST_MAX];  // closed ring entries, oldest completion first
  int32_t peers[PACELINE_PEERS_MAX];
  uint32_t peer_count;
  uint16_t peer_table[4 * PACELINE_PEERS_MAX];  // open addressing: row + 1
  List lists[kListCount];
  Node nodes[PACELINE_OPEN_OPS_MAX];
};

struct Heart {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  bool running, stop;
};

}  // namespace paceline

struct paceline_page_v1 {
  paceline::Mapping page, control;
  std::atomic<bool> active;
  bool forked;
  std::mutex mutex;  // header strings, opening and closing of communicators
  paceline::Heart heart;
  uint64_t closed_count;
  std::atomic<uint32_t> pins;  // writers that may still touch the page when its owner is through with it
  std::atomic<paceline::Communicator*> communicators[PACELINE_COMMUNICATORS_MAX];
  paceline_page_v1 *previous, *next;  // all pages of the process, for the fork handler

  char* base() const { return static_cast<char*>(page.address); }
  paceline::Process& process() const { return *reinterpret_cast<paceline::Process*>(base()); }
  const paceline::Control& requested() const {
    return *static_cast<const paceline::Control*>(control.address);
  }
  paceline::Frame& frame(uint32_t slot) const {
    return *reinterpret_cast<paceline::Frame*>(base() + PACELINE_FRAMES_OFFSET + slot * PACELINE_FRAME_STRIDE);
  }
  char* detail(uint32_t slot) const {
    return base() + PACELINE_DETAIL_OFFSET + slot * size_t{PACELINE_DETAIL_STRIDE};
  }
  paceline::Round* rounds(uint32_t slot) const {
    return reinterpret_cast<paceline::Round*>(detail(slot) + PACELINE_ROUNDS_IN_DETAIL);
  }
  paceline::RoundTimes* times(uint32_t slot) const {
    return reinterpret_cast<paceline::RoundTimes*>(detail(slot) + PACELINE_ROUND_TIMES_IN_DETAIL);
  }
  paceline::Edge* edges(uint32_t slot) const {
    return reinterpret_cast<paceline::Edge*>(detail(slot) + PACELINE_EDGES_IN_DETAIL);
  }
  paceline::Peer* peers(uint32_t slot) const {
    return reinterpret_cast<paceline::Peer*>(detail(slot) + PACELINE_PEERS_IN_DETAIL);
  }
  bool usable() const { return active.load(std::memory_order_relaxed); }
};

namespace paceline {

void count_error(paceline_page_v1* page);
uint32_t thread_id();       // of the kernel, cached per thread
void forget_thread_id();    // in a forked child
int start_heart(paceline_page_v1* page);
void stop_heart(paceline_page_v1* page);

// Counts and waits (progress.cc). The same locks are held.
Traffic traffic_of(const Frame& frame);

// Tickets (operations.cc). The communicator's mutex is held; nullptr where the ticket is not open.
uint32_t ticket_slot(int64_t ticket);
Node* open_node(Communicator* communicator, int64_t ticket);

// The communicator of an open or closing slot, nullptr (counted) where there is none.
Communicator* find_communicator(paceline_page_v1* page, int64_t slot);

// The row of this edge, nullptr where all are taken by others (progress.cc). The same locks are held.
Edge* find_edge(paceline_page_v1* page, uint32_t slot, int32_t peer, uint16_t direction, uint16_t group);

// Point-to-point rows (peers.cc). The communicator's mutex and the frame's sequence lock are held.
uint16_t find_peer_row(paceline_page_v1* page, Communicator* communicator, int32_t peer);
void post_pair(paceline_page_v1* page, Communicator* communicator, Node* node, uint16_t row, uint32_t direction);
// When it started: the later of its entry and the previous completion of the pair.
uint64_t complete_pair(paceline_page_v1* page, Communicator* communicator, const Node& node, bool failed);
uint64_t pair_total_ns(paceline_page_v1* page, Communicator* communicator, const Node& node);
void show_pair_head(paceline_page_v1* page, Communicator* communicator, uint16_t list);

// The round ring (ring.cc). The same locks are held.
void count_dropped(paceline_page_v1* page, Communicator* communicator);
void place_kept(Communicator* communicator, uint64_t round, uint8_t (&places)[kKeptLevelCount]);
// False where the ring had no free entry.
bool record_entered(paceline_page_v1* page, Communicator* communicator, Node* node);
void record_completed(paceline_page_v1* page, Communicator* communicator, const Node& node,
                      const RoundTimes& times);

// Lists of operations in flight (open_ops.cc).
void reset_nodes(Communicator* communicator);
uint16_t take_node(Communicator* communicator);
void give_node(Communicator* communicator, uint16_t index);
void append_node(Communicator* communicator, uint16_t index, uint16_t list);
// True where it was the head of its list.
bool remove_node(Communicator* communicator, uint16_t index);

}  // namespace paceline
