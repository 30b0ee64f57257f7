import type { Schemas } from "../api/client";
import { formatHours } from "../pages/incident/cost";
import { formatDuration } from "./words";

/** What the pause is expected to cost: the median pause of the job's own repairs, times its ranks. */
export function expectedCost(
  now: Schemas["Preconditions"],
  kind: Schemas["RepairKind"],
  unit: Schemas["CostRead"]["unit"],
): string {
  const pause = now.expected_pause_s;
  if (pause === null) {
    return kind === "planned_swap"
      ? "not known yet: training goes on until the switch"
      : "not known yet: no repair of this job has resumed";
  }
  const hours = formatHours((pause * now.members_known) / 3600, unit);
  const ranks = `${now.members_known} rank${now.members_known === 1 ? "" : "s"}`;
  return `pause of ${formatDuration(pause * 1000)} × ${ranks}: ${hours}`;
}
