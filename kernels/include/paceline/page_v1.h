/* The probe page writer, version 1: a C ABI for everything that observes a training process.
 *
 * Nothing here blocks on anything but a short lock, allocates after a communicator was opened, or
 * reports an error into the caller's control flow: what goes wrong is counted in the page header.
 * Every function may be called from any thread. In a forked child all pages of the parent are off.
 * See docs/adr/0003-probe-pages.md.
 */
#ifndef PACELINE_PAGE_V1_H
#define PACELINE_PAGE_V1_H

#include "paceline/probe_v1.h"

#define PACELINE_OPEN_OPS_MAX 512u /* operations in flight per communicator that are tracked one by one */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct paceline_page_v1 paceline_page_v1;

typedef struct paceline_identity_v1 {
  const char* job;     /* UTF-8, cut to 127 bytes */
  const char* attempt; /* UTF-8, cut to 63 bytes */
  int32_t global_rank; /* -1 while unknown */
  int32_t world_size;  /* 0 while unknown */
  int32_t local_rank;  /* -1 while unknown */
} paceline_identity_v1;

typedef struct paceline_communicator_v1 {
  uint64_t comm;
  uint32_t instance;
  uint32_t comm_rank;
  uint32_t nranks;
  uint32_t global_rank;
  uint32_t sources; /* PACELINE_SOURCE_* */
} paceline_communicator_v1;

typedef struct paceline_operation_v1 {
  uint64_t count;           /* elements, as called */
  uint64_t bytes;           /* as called */
  uint64_t signature_count; /* elements where every member must agree on them, else 0 */
  int32_t peer;             /* root or peer as a rank of the communicator, -1 none, -2 any source */
  uint8_t function;         /* PACELINE_FUNCTION_*; SEND, RECV and RECV_ANY are point-to-point */
  uint8_t dtype;
  uint8_t reduce_op;
} paceline_operation_v1;

/* What one directed edge did since the last call; all numbers are increments. A slice is what the
   algorithm hands over at once. */
typedef struct paceline_advance_v1 {
  int32_t peer;      /* rank of the communicator */
  uint8_t direction; /* 0 send, 1 receive */
  uint8_t group;     /* channel group: 0 ring, 1 first tree, 2 second tree */
  uint8_t channel;   /* below PACELINE_CHANNELS_MAX */
  uint8_t peer_slot; /* ring: 0; tree: 0 up, 1 to 3 down */
  uint32_t posted;   /* slices handed over, or asked for */
  uint32_t count;    /* slices delivered to the peer's host, or received whole */
  uint64_t bytes;    /* of these */
  uint64_t wait_ns;  /* waited for this peer after the pipeline had filled */
  uint64_t early_wait_ns; /* waited before that, in an operation that stands still: only the edge counts it */
  uint8_t state;     /* of this direction of the channel: 0 idle, 1 moving, 2 waits for the peer */
} paceline_advance_v1;

/* splitmix64's finalizer (Steele, Lea, Flood 2014); which rounds are kept depends on it. */
static inline uint64_t paceline_mix64_v1(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* 64-bit hash over what every member of an operation must agree on; never 0. */
uint64_t paceline_signature_v1(const paceline_operation_v1* operation);

/* 0 and a page, else a negative errno (memfd refused, no memory) and no page. */
int paceline_page_create_v1(const paceline_identity_v1* identity, const char* framework,
                            paceline_page_v1** page);
/* Stops the heartbeat, unmaps, closes the descriptors. No other call may be running. */
void paceline_page_destroy_v1(paceline_page_v1* page);
/* Stops the heartbeat and ignores all later calls; the descriptors stay open. */
void paceline_page_close_v1(paceline_page_v1* page);
int paceline_page_fd_v1(const paceline_page_v1* page);    /* read-only; -1 in a forked child */
int paceline_control_fd_v1(const paceline_page_v1* page); /* writable, for the agent; -1 in a child */
int paceline_page_active_v1(const paceline_page_v1* page); /* 0 after close and in a forked child */
/* Where this process has mapped it, for kernels that write their own counters; nullptr in a forked child. */
void* paceline_page_address_v1(const paceline_page_v1* page);

void paceline_page_set_identity_v1(paceline_page_v1* page, const paceline_identity_v1* identity);
void paceline_page_set_phase_v1(paceline_page_v1* page, uint32_t phase, const char* name);
void paceline_page_set_host_wait_v1(paceline_page_v1* page, uint32_t kind, const char* name, int32_t rank);
void paceline_page_set_step_v1(paceline_page_v1* page, uint64_t step);
void paceline_page_add_paced_v1(paceline_page_v1* page, uint64_t paced_ns);
void paceline_page_beat_v1(paceline_page_v1* page); /* the Python heartbeat */
void paceline_page_finish_v1(paceline_page_v1* page);
void paceline_page_count_error_v1(paceline_page_v1* page);
/* Fills detail, generation, pace_ns, pace_expires_ns and agent_beat_ns. 1 if they are one write of the
   agent; else 0, and pace_ns is 0. */
int paceline_page_read_control_v1(paceline_page_v1* page, paceline_control_page_v1* control);

/* Slot 0 to 63; -1 when all are in use (counted). */
int paceline_open_communicator_v1(paceline_page_v1* page, const paceline_communicator_v1* communicator);
/* The slot is used again when its last open operation has completed. */
void paceline_close_communicator_v1(paceline_page_v1* page, int slot);
/* Adds FrameFlag bits, for example COMPLETION_UNOBSERVABLE. */
void paceline_add_flags_v1(paceline_page_v1* page, int slot, uint32_t flags);

/* A ticket for `returned` and `complete`; -1 where nothing was counted. */
int64_t paceline_enter_v1(paceline_page_v1* page, int slot, const paceline_operation_v1* operation);
void paceline_returned_v1(paceline_page_v1* page, int64_t ticket);
/* A ticket that is not open (completed twice, made up) changes nothing and counts as an error. */
void paceline_complete_v1(paceline_page_v1* page, int64_t ticket, int failed);

/* The same for callers that have read CLOCK_MONOTONIC already. */
int64_t paceline_enter_at_v1(paceline_page_v1* page, int slot, const paceline_operation_v1* operation,
                             uint64_t now_ns);
void paceline_returned_at_v1(paceline_page_v1* page, int64_t ticket, uint64_t now_ns);
void paceline_complete_at_v1(paceline_page_v1* page, int64_t ticket, int failed, uint64_t now_ns);

/* Sets and clears FrameFlag bits in one write. */
void paceline_change_flags_v1(paceline_page_v1* page, int slot, uint32_t set, uint32_t clear);
/* A second source (PACELINE_SOURCE_*) has met a communicator that is open. */
void paceline_add_sources_v1(paceline_page_v1* page, int slot, uint32_t sources);
/* The first kernel of an operation has started: it began no earlier. */
void paceline_kernel_started_v1(paceline_page_v1* page, int64_t ticket, uint64_t now_ns);
/* The row of a directed edge (see paceline_advance_v1), -1 where all rows belong to others (counted). */
int paceline_edge_row_v1(paceline_page_v1* page, int slot, int32_t peer, uint8_t direction, uint8_t group);

/* A second writer in this process finds the page that the first one made, and keeps it mapped until the
   process ends. nullptr where there is none, or where `abi` is not the PACELINE_PAGE_ABI it was built with. */
#define PACELINE_PAGE_ABI 1u
paceline_page_v1* paceline_shared_page_v1(uint32_t abi);

/* For sources that see inside an operation. `describe` says how it is carried out (PACELINE_ALGORITHM_*,
   PACELINE_PROTOCOL_*, channels in use), `progress` counts what moved on one edge. An edge beyond the
   PACELINE_EDGES_MAX rows still counts in the frame, and as an error. */
void paceline_describe_v1(paceline_page_v1* page, int64_t ticket, uint8_t algorithm, uint8_t protocol,
                          uint8_t channels);
void paceline_progress_v1(paceline_page_v1* page, int slot, const paceline_advance_v1* advance);

#ifdef __cplusplus
}
#endif
#endif
