/** From what members reported to the rows of the panel: who has come how far, and who was slowest. Pure. */
import { isOver, type Recovery, type RepairAction } from "../api/repair";
import type { Phase } from "./words";

export type StepState = "done" | "running" | "pending" | "failed";

/** One line: what, how far, how long, by whose clock. */
export interface StepRow {
  readonly key: string;
  readonly title: string;
  readonly state: StepState;
  readonly at: string | null;
  readonly durationMs: number | null;
  readonly detail: string;
}

const PHASES: readonly (readonly [Phase, string])[] = [
  ["detect", "Detect"],
  ["fence", "Fence"],
  ["rendezvous", "Rendezvous"],
  ["parameters", "Restore parameters"],
  ["optimizer", "Restore optimizer"],
  ["resume", "Resume"],
  ["first_step", "First step"],
];
/** Not reported by everybody, or not at all: shown where somebody did. */
const OPTIONAL: readonly Phase[] = ["detect", "fence"];

interface PhaseSum {
  readonly members: number;
  readonly slowest: Recovery["phases"][number];
  readonly bytes: number;
  readonly lastAt: string;
}

function sumPhase(recovery: Recovery, phase: Phase): PhaseSum | null {
  const newest = new Map<string, Recovery["phases"][number]>();
  for (const row of recovery.phases) if (row.phase === phase) newest.set(row.member, row);
  let slowest: Recovery["phases"][number] | undefined;
  let lastAt = "";
  let bytes = 0;
  for (const row of newest.values()) {
    if (slowest === undefined || row.duration_ms > slowest.duration_ms) slowest = row;
    if (row.at > lastAt) lastAt = row.at;
    bytes += row.bytes_count;
  }
  return slowest === undefined ? null : { members: newest.size, slowest, bytes, lastAt };
}

/** The phases of one generation. Durations are the slowest member's, by its own clock. */
export function phaseRows(
  recovery: Recovery,
  joiners: readonly string[],
  planned: boolean,
  formatBytes: (bytes: number) => string,
): readonly StepRow[] {
  const seats = recovery.seats.length;
  const joined = recovery.seats.filter((seat) => joiners.includes(seat.member)).length;
  const ended = recovery.ended_at !== null;
  const wantedIn: Partial<Record<Phase, number>> = {
    detect: seats - joined, // who joins has detected nothing
    ...(planned ? { optimizer: joined } : {}), // who stays keeps what it has
  };
  return PHASES.flatMap(([phase, title]) => {
    const sum = sumPhase(recovery, phase);
    if (sum === null && (OPTIONAL.includes(phase) || (planned && phase === "parameters")))
      return [];
    const wanted = wantedIn[phase] ?? seats;
    const members = sum?.members ?? 0;
    const whole = members >= wanted;
    const parts = [`${members} of ${wanted} members`];
    if (sum !== null && members > 1) parts.push(`slowest rank ${sum.slowest.rank}`);
    if (sum !== null && sum.bytes > 0) parts.push(formatBytes(sum.bytes));
    const state = whole ? "done" : ended ? "failed" : members > 0 ? "running" : "pending";
    return [
      {
        key: phase,
        title,
        state,
        at: sum?.lastAt ?? null,
        durationMs: sum?.slowest.duration_ms ?? null,
        detail: parts.join(", "),
      } satisfies StepRow,
    ];
  });
}

/** What members could not do: the newest word of each order that was not carried out. */
export function refusals(recovery: Recovery): readonly Recovery["phases"][number][] {
  return recovery.phases.filter(
    (row) =>
      row.kind === "error" ||
      (row.kind === "result" && row.outcome !== null && row.outcome !== "done"),
  );
}

function between(from: string | null, to: string | null): number | null {
  return from === null || to === null ? null : Math.max(0, Date.parse(to) - Date.parse(from));
}

/** What the platform itself did before the first generation, by its own clock. */
export function platformRows(
  action: RepairAction,
  recoveries: readonly Recovery[],
): readonly StepRow[] {
  const over = isOver(action);
  const rows: StepRow[] = [
    {
      key: "proposed",
      title: "Proposed",
      state: "done",
      at: action.created_at,
      durationMs: null,
      detail: action.requested_by === "system" ? "" : `asked for by ${action.requested_by}`,
    },
  ];
  if (action.decided_at !== null) {
    rows.push({
      key: "decided",
      title: action.status === "rejected" ? "Rejected" : "Approved",
      state: "done",
      at: action.decided_at,
      durationMs: between(action.created_at, action.decided_at),
      detail: `by ${action.decided_by}`,
    });
  }
  if (action.dispatched_at === null && over) return rows;
  rows.push({
    key: "dispatched",
    title: "First order",
    state: action.dispatched_at === null ? "pending" : "done",
    at: action.dispatched_at,
    durationMs: between(action.decided_at ?? action.created_at, action.dispatched_at),
    detail: "",
  });
  if (action.kind === "swap") rows.push(fenceRow(action, recoveries, over));
  return rows;
}

function fenceRow(action: RepairAction, recoveries: readonly Recovery[], over: boolean): StepRow {
  const opened = recoveries[0]?.started_at ?? null;
  const begun = action.dispatched_at !== null;
  return {
    key: "fence",
    title: "Fence",
    state: opened !== null ? "done" : over ? "failed" : begun ? "running" : "pending",
    at: opened,
    durationMs: between(action.dispatched_at, opened),
    detail: opened === null ? "" : "what leaves has stopped",
  };
}
