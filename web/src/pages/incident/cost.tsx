import type { Schemas } from "../../api/client";
import { Facts } from "../../components/panel";
import { formatAge, useNow } from "../../lib/time";
import { describeRoot } from "./summary";

type CostRead = Schemas["CostRead"];

/** `12.3 GPU hours`, `1 GPU minute`, `less than 1 rank minute`, `1,204 rank hours`. */
export function formatHours(hours: number, unit: CostRead["unit"]): string {
  const noun = unit === "gpu" ? "GPU" : "rank";
  const minutes = Math.round(hours * 60);
  if (minutes < 1) return `less than 1 ${noun} minute`;
  if (minutes < 60) return `${minutes} ${noun} minute${minutes === 1 ? "" : "s"}`;
  const digits = hours < 100 ? 1 : 0;
  return `${hours.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${noun} hours`;
}

/** What is lost at `nowMs`: it goes on growing after the answer was given. */
export function lostText(cost: CostRead, nowMs: number): string {
  if (cost.hours === null) return `not known: ${cost.reason}`;
  const sinceHours = Math.max(0, nowMs - Date.parse(cost.as_of)) / 3_600_000;
  const hours = formatHours(cost.hours + cost.hours_per_hour * sinceHours, cost.unit);
  const unknown =
    cost.unknown_s > 0 ? `, and ${formatAge(cost.unknown_s)} slow by an unknown amount` : "";
  return `${cost.at_most ? "at most " : ""}${hours}${unknown}`;
}

export function regainText(regain: Schemas["RegainRead"]): string {
  if (regain.ratio === null) return `not known: ${regain.reason}`;
  const percent = (regain.ratio * 100).toFixed(1);
  return `${regain.at_most ? "at most " : ""}${percent} % more steps (${regain.reason})`;
}

export function Cost({ cost }: { readonly cost: CostRead }) {
  const now = useNow();
  return (
    <div className="mt-3">
      <Facts
        entries={[
          ["lost so far", lostText(cost, now)],
          ...cost.what_if.map(
            (regain) =>
              [`if ${describeRoot(regain.root)} were healthy`, regainText(regain)] as const,
          ),
        ]}
      />
    </div>
  );
}
