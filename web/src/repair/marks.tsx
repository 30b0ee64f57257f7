/** Small signs of repair: never colour alone. */
import type { ReactNode } from "react";
import type { Schemas } from "../api/client";
import type { StepState } from "./phases";

const STATUS: Readonly<Record<Schemas["ActionStatus"], string>> = {
  proposed: "border-slow bg-slow-wash text-slow",
  approved: "border-slow bg-slow-wash text-slow",
  dispatched: "border-accent text-accent",
  observing: "border-accent text-accent",
  succeeded: "border-good bg-good-wash text-good",
  failed: "border-hang bg-hang-wash text-hang",
  rejected: "border-unsure bg-unsure-wash text-unsure",
  expired: "border-unsure bg-unsure-wash text-unsure",
  rolled_back: "border-unsure bg-unsure-wash text-unsure",
};

export function StatusChip({ status }: { readonly status: Schemas["ActionStatus"] }) {
  return (
    <span
      className={`whitespace-nowrap rounded border px-1.5 py-0.5 font-semibold text-xs ${STATUS[status]}`}
    >
      {status.replace("_", " ")}
    </span>
  );
}

interface Mark {
  readonly sign: string;
  readonly word: string;
  readonly className: string;
}

const CHECK: Readonly<Record<Schemas["CheckState"], Mark>> = {
  met: { sign: "✓", word: "met", className: "text-good" },
  waits: { sign: "…", word: "waits", className: "text-slow" },
  refused: { sign: "✕", word: "refused", className: "text-hang" },
  not_asked: { sign: "○", word: "not yet", className: "text-soft" },
};

export function CheckMark({ state }: { readonly state: Schemas["CheckState"] }) {
  const mark = CHECK[state];
  return (
    <span
      className={`flex w-20 flex-none items-baseline gap-1.5 whitespace-nowrap font-semibold ${mark.className}`}
    >
      <span aria-hidden="true" className="w-3 flex-none text-center">
        {mark.sign}
      </span>
      {mark.word}
    </span>
  );
}

const STEP: Readonly<Record<StepState, Mark>> = {
  done: { sign: "✓", word: "done", className: "text-good" },
  running: { sign: "◐", word: "under way", className: "text-accent" },
  pending: { sign: "○", word: "not yet", className: "text-soft" },
  failed: { sign: "✕", word: "not reached", className: "text-hang" },
};

export function StepMark({ state }: { readonly state: StepState }) {
  const mark = STEP[state];
  return (
    <span className={`w-4 flex-none text-center font-semibold ${mark.className}`}>
      <span aria-hidden="true">{mark.sign}</span>
      <span className="sr-only">{mark.word}</span>
    </span>
  );
}

export function SmallHeading({ children }: { readonly children: ReactNode }) {
  return <h3 className="mt-4 mb-1 text-soft text-xs uppercase tracking-wider">{children}</h3>;
}
