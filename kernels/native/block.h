// What the layout calls a frame and its detail block, short names for it, and both in one piece.
#pragma once

#include "paceline/probe_v1.h"

namespace paceline {

using Process = paceline_process_header_v1;
using Frame = paceline_frame_v1;
using Round = paceline_round_entry_v1;
using RoundTimes = paceline_round_times_v1;
using Peer = paceline_peer_row_v1;
using Edge = paceline_edge_v1;

constexpr uint32_t kKeptLevels[] = {0, 4, 8, 12};
constexpr uint32_t kKeptLevelCount = 4;
static_assert(PACELINE_ROUNDS_NEWEST_MAX + PACELINE_ROUNDS_KEPT_MAX * kKeptLevelCount == PACELINE_ROUNDS_MAX,
              "the ring is the newest rounds and four kept levels");

// One communicator as a reader has copied it: its frame and right behind it its detail block.
struct Block {
  Frame frame;
  Round rounds[PACELINE_ROUNDS_MAX];
  RoundTimes times[PACELINE_ROUNDS_MAX];
  Edge edges[PACELINE_EDGES_MAX];
  Peer peers[PACELINE_PEERS_MAX];
};

constexpr size_t kDetailBytes = sizeof(Block) - sizeof(Frame);
static_assert(offsetof(Block, rounds) == sizeof(Frame) + PACELINE_ROUNDS_IN_DETAIL, "rounds");
static_assert(offsetof(Block, times) == sizeof(Frame) + PACELINE_ROUND_TIMES_IN_DETAIL, "times");
static_assert(offsetof(Block, edges) == sizeof(Frame) + PACELINE_EDGES_IN_DETAIL, "edges");
static_assert(offsetof(Block, peers) == sizeof(Frame) + PACELINE_PEERS_IN_DETAIL, "peers");
static_assert(kDetailBytes <= PACELINE_DETAIL_STRIDE, "a detail block holds its peers");

constexpr size_t kPeersBytes = sizeof(Block::peers);

// Unused rows as the reader leaves them; a writer's may be out of range as well.
inline bool is_used(const Edge& edge) { return edge.peer >= 0; }
inline bool is_used(const Peer& row) { return row.posted[0] != 0 || row.posted[1] != 0; }
// Most communicators never see a message: none of their peer rows is used then, nor worth a look.
inline uint32_t peers_in_use(const Frame& frame) { return frame.p2p_started > 0 ? PACELINE_PEERS_MAX : 0; }

}  // namespace paceline
