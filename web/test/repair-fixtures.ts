import type { Schemas } from "../src/api/client";
import type { Recovery, RepairAction, RepairDetail } from "../src/api/repair";

const CREATED = "2026-01-02T03:04:05Z";

export const ACTION: RepairAction = {
  id: "act_1",
  job: "llama",
  attempt: "a1",
  incident_id: "inc_1",
  kind: "swap",
  cause: "process_exit",
  status: "proposed",
  mode: "approve",
  reason: "needs_approval",
  message: "rank 5 is gone: signal 9",
  ranks: "5",
  leavers: ["m5"],
  joiners: ["s0"],
  generation: 0,
  step: -1,
  replayed: 0,
  requested_by: "system",
  decided_by: "",
  note: "",
  cancel_requested: false,
  created_at: CREATED,
  expires_at: "2999-01-02T03:19:05Z",
  decided_at: null,
  dispatched_at: null,
  ended_at: null,
  version: 3,
};

export const DETAIL: RepairDetail = {
  ...ACTION,
  preconditions: {
    standbys_ready: 1,
    members_known: 64,
    least_support: "verified",
    blast_ranks: 1,
    replayed_steps_at_most: 1,
    expected_pause_s: 2.25,
  },
  checks: [
    { name: "standby", state: "met", reason: "", detail: "1 ready, 1 needed" },
    {
      name: "stop_switch",
      state: "refused",
      reason: "stop_switch",
      detail: "on for all jobs, by ada",
    },
    { name: "approval", state: "waits", reason: "needs_approval", detail: "a person decides" },
    { name: "evidence", state: "not_asked", reason: "", detail: "later" },
  ],
  places: [{ rank: 5, leaver: "m5", leaver_node: "gpu-1", joiner: "s0", joiner_node: "gpu-9" }],
};

export const SUCCEEDED: RepairAction = {
  ...ACTION,
  status: "succeeded",
  reason: "resumed",
  decided_by: "ada",
  decided_at: "2026-01-02T03:05:05Z",
  dispatched_at: "2026-01-02T03:05:05.200Z",
  ended_at: "2026-01-02T03:05:07.500Z",
  generation: 4,
  step: 1201,
  replayed: 1,
  version: 6,
};

export function phase(
  member: string,
  rank: number,
  name: Schemas["RecoveryPhase"],
  duration_ms: number,
  changes: Partial<Schemas["PhaseRead"]> = {},
): Schemas["PhaseRead"] {
  return {
    member,
    rank,
    kind: "phase",
    phase: name,
    outcome: null,
    duration_ms,
    step: 1201,
    replayed: 1,
    bytes_count: 0,
    message: "",
    at: `2026-01-02T03:05:0${rank}Z`,
    ...changes,
  };
}

export const RECOVERY: Recovery = {
  id: "rcv_1",
  action_id: "act_1",
  job: "llama",
  attempt: "a1",
  generation: 4,
  attempt_no: 0,
  state: "restoring",
  seats: [
    { rank: 0, member: "m0" },
    { rank: 1, member: "s0" },
  ],
  step: -1,
  replayed: 0,
  reason: "restoring",
  started_at: "2026-01-02T03:05:06.200Z",
  ended_at: null,
  phases: [
    phase("m0", 0, "detect", 40),
    phase("m0", 0, "rendezvous", 80),
    phase("s0", 1, "rendezvous", 95),
    phase("s0", 1, "optimizer", 200, { bytes_count: 3_200_000 }),
  ],
};
