/** Repair in words of people: kinds, reasons, phases, ends. Pure. */
import type { Schemas } from "../api/client";
import { isUnderWay, type Recovery, type RepairAction, type RepairDetail } from "../api/repair";

export type CheckName = Schemas["CheckName"];
export type Phase = Schemas["RecoveryPhase"];

const REASONS: Readonly<Record<string, string>> = {
  observed_only: "the policy only observes",
  needs_approval: "a person has to approve it",
  stop_switch: "the stop switch is on",
  blast_radius: "more ranks at once than are replaced without a person",
  rate_limit: "more actions in the last hour than are done without a person",
  circuit_breaker: "several repairs in a row have failed",
  fleet_breaker: "repairs of several other jobs have failed of late",
  not_verified: "the job's kind of parallelism is not verified",
  not_fenced: "nothing proves that what leaves has stopped",
  wait_standby: "a standby is getting ready",
  wait_evidence: "evidence is collected before anything is killed",
  wait_settled: "whether it is what it looks like",
  too_large: "no order can name all ranks",
  members_unknown: "not every rank has a supervisor",
  proposed: "just proposed",
  merged: "a second fault was added",
  superseded: "another fault came before it",
  prepared: "everybody gets ready while training goes on",
  fence: "what leaves is stopped first",
  rebuild: "a new generation is built",
  rebuild_again: "the rendezvous is tried again",
  switch: "everybody switches at a step boundary",
  restoring: "state is restored",
  resumed: "every member has finished a step",
  capture: "nodes ship stacks",
  shipped: "the nodes have shipped",
  not_shipped_in_time: "the nodes did not ship in time",
  nobody_asked: "no node was asked: it needs the command key",
  expired: "nobody decided in time",
  cancelled: "somebody cancelled it",
  rolled_back: "what was prepared was dropped",
  went_away: "the fault ended by itself",
  no_standby: "no standby is ready",
  state_lost: "no copy of some state is left",
  fence_failed: "what leaves could not be stopped",
  rebuilds_exhausted: "too many generations were tried",
  no_progress: "repaired several times without a new step",
  same_error_on_many: "the same error on several ranks",
  unnamed_transients: "too many errors in a row, and nothing names who causes them",
  refused_layout: "the job's kind of parallelism is not repaired",
  job_over: "the job has ended",
};

/** `a standby is getting ready`; a name that is not known here is shown as it is. */
export function reasonText(reason: string): string {
  return REASONS[reason] ?? reason.replaceAll("_", " ");
}

const CHECKS: Readonly<Record<CheckName, string>> = {
  members: "every rank has a supervisor",
  standby: "standby",
  policy: "policy",
  stop_switch: "stop switch",
  layout: "kind of parallelism",
  approval: "approval",
  verified: "verified for repair without a person",
  blast_radius: "blast radius",
  circuit_breaker: "circuit breaker",
  fleet_breaker: "circuit breaker of the cluster",
  rate_limit: "rate limit",
  fence: "end of what leaves",
  settled: "fault has settled",
  evidence: "evidence is in",
};

export function checkTitle(name: CheckName): string {
  return CHECKS[name];
}

function ranksText(ranks: string): string {
  if (ranks === "") return "";
  return /[-,]/.test(ranks) ? ` ranks ${ranks.replaceAll(",", ", ")}` : ` rank ${ranks}`;
}

/** What would be done, as an order: `Replace rank 5`. */
export function actionTitle(action: RepairAction): string {
  const ranks = ranksText(action.ranks);
  switch (action.kind) {
    case "swap":
      return `Replace${ranks}`;
    case "planned_swap":
      return `Replace${ranks} at a step boundary`;
    case "retry":
      return "Try again with the same members";
    case "stack_capture":
      return "Capture stacks, replace nothing";
    case "fallback":
      return "Fall back to the checkpoint on disk";
  }
}

export function modeText(mode: Schemas["RepairMode"]): string {
  if (mode === "observe") return "observe: Paceline proposes and nobody acts by itself";
  return mode === "approve" ? "approve: a person decides" : "auto: no person is needed";
}

/** `870 ms`, `2.31 s`, `41 s`, `3 min`. */
export function formatDuration(ms: number): string {
  if (ms < 1000) return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 100_000) return `${(ms / 1000).toFixed(0)} s`;
  return `${Math.round(ms / 60_000)} min`;
}

/** Seconds that are left, as `9 min 41 s`. */
export function formatLeft(seconds: number): string {
  const left = Math.max(0, Math.floor(seconds));
  return left < 60 ? `${left} s` : `${Math.floor(left / 60)} min ${left % 60} s`;
}

export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["kB", "MB", "GB", "TB"];
  const power = Math.min(units.length, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(1)} ${units[power - 1]}`;
}

export function stepsText(count: number): string {
  return `${count} step${count === 1 ? "" : "s"}`;
}

/** What differs from what was read; null where nothing does that a decision depends on. */
export function changeText(seen: RepairAction, now: RepairAction): string | null {
  const joins = (action: RepairAction) => action.joiners.join(", ");
  if (seen.version === now.version && joins(seen) === joins(now)) return null;
  const parts = [`it is ${now.status.replace("_", " ")} now (${reasonText(now.reason)})`];
  if (actionTitle(seen) !== actionTitle(now)) {
    parts.push(`it was “${actionTitle(seen)}”, it is “${actionTitle(now)}”`);
  }
  if (joins(seen) !== joins(now)) parts.push(`joining: ${joins(now) || "nobody yet"}`);
  return parts.join("; ");
}

/** What a person who is about to approve has to know: what refuses, and an end that nothing proves. */
export function warnings(action: RepairDetail): readonly string[] {
  return action.checks
    .filter((check) => check.state === "refused" || check.reason === "not_fenced")
    .map((check) => `${checkTitle(check.name)}: ${check.detail || reasonText(check.reason)}`);
}

/** How it ended, or what is being done; `tone` colours it. */
export interface Outcome {
  readonly tone: "good" | "hang" | "slow" | "soft";
  readonly text: string;
}

export function outcomeOf(action: RepairAction, recoveries: readonly Recovery[]): Outcome {
  const reason = reasonText(action.reason);
  if (action.kind === "stack_capture") return captureOutcome(action, reason);
  const generation = action.generation > 0 ? ` on generation ${action.generation}` : "";
  switch (action.status) {
    case "proposed":
      return { tone: "slow", text: `Nothing yet: ${reason}.` };
    case "approved":
      return { tone: "slow", text: `Approved by ${action.decided_by}; not dispatched yet.` };
    case "dispatched":
    case "observing":
      return { tone: "slow", text: `Under way${generation}: ${reason}.` };
    case "succeeded":
      if (action.kind === "fallback") return fallbackOutcome(reason);
      return { tone: "good", text: resumedText(action, recoveries) };
    case "failed":
      if (action.reason === "job_over") return { tone: "soft", text: "The job ended first." };
      return fallbackOutcome(reason);
    case "rolled_back":
      return { tone: "soft", text: `Rolled back (${reason}); training went on all the time.` };
    case "rejected":
      return { tone: "soft", text: `Nothing was done: ${action.decided_by} rejected it.` };
    case "expired":
      return { tone: "soft", text: `Nothing was done: ${reason}.` };
  }
}

function captureOutcome(action: RepairAction, reason: string): Outcome {
  if (isUnderWay(action)) return { tone: "slow", text: "Stacks are asked for; no node has to go." };
  if (action.status === "succeeded") return { tone: "good", text: "Stacks were captured." };
  return { tone: "hang", text: `No stacks: ${reason}.` };
}

function fallbackOutcome(reason: string): Outcome {
  const what = "only the checkpoint on disk helps, and the incident pages a person";
  return { tone: "hang", text: `Given up explicitly (${reason}): ${what}.` };
}

function resumedText(action: RepairAction, recoveries: readonly Recovery[]): string {
  const tries = recoveries.length > 1 ? ` after ${recoveries.length} generations` : "";
  const again =
    action.replayed > 0 ? `${stepsText(action.replayed)} run again` : "no step run again";
  const took =
    action.ended_at && action.dispatched_at
      ? `, ${formatDuration(Date.parse(action.ended_at) - Date.parse(action.dispatched_at))} after the first order`
      : "";
  return `Resumed at step ${action.step} on generation ${action.generation}${tries}: ${again}${took}.`;
}
