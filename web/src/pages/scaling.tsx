import type { Schemas } from "../api/client";
import { useScaling } from "../api/queries";
import { ErrorNotice } from "../components/error-notice";
import { Panel } from "../components/panel";
import { type Column, Table } from "../components/table";
import { Age } from "../lib/time";

type Window = Schemas["ScalingWindowRead"];
type Mode = Schemas["ScalingModeRead"];

const MODES: Readonly<Record<Mode["mode"], string>> = {
  sync_amplification: "Pauses in turn",
  fabric_contention: "Contended fabric",
  locality_variance: "Slow place",
};
const CV_UNEVEN = 0.08; // of docs/adr/0024: below it the iteration time is even
const SHOWN = 10;

/** `6.5 %`; less than a tenth of a percent is not zero. */
export function formatShare(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

/** `850 ms`, `1.25 s`, `34.0 s`. */
export function formatStep(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}

/** What a window showed, in one line. */
export function windowText(window: Window): string {
  if (window.refused) return `not judged: ${window.refused}`;
  if (window.findings.length === 0) return "nothing";
  return window.findings
    .map((found) => `${MODES[found.mode].toLowerCase()} (${formatShare(found.cost_share)})`)
    .join(", ");
}

const WINDOWS: readonly Column<Window>[] = [
  { title: "judged", cell: (row) => <Age at={row.judged_at} /> },
  {
    title: "steps",
    cell: (row) => (row.iterations > 0 ? `${row.first_step}–${row.last_step}` : "–"),
  },
  { title: "iterations", numeric: true, cell: (row) => row.iterations },
  {
    title: "iteration",
    numeric: true,
    cell: (row) => (row.step_s > 0 ? formatStep(row.step_s) : "–"),
  },
  {
    title: "CV",
    numeric: true,
    cell: (row) =>
      row.cv === null ? (
        "–"
      ) : (
        <span className={row.cv >= CV_UNEVEN ? "font-semibold text-slow" : ""}>
          {row.cv.toFixed(3)}
        </span>
      ),
  },
  { title: "found", cell: windowText },
];

/** CV of the iteration time of each window, and why the job scales badly where it does. */
export function Scaling({ jobId }: { readonly jobId: string }) {
  const scaling = useScaling(jobId);
  const windows = scaling.data?.items ?? [];
  const newest = windows[0];
  const seen =
    newest && newest.ranks > 0 ? `${newest.ranks} of ${newest.ranks_expected} ranks` : "";
  return (
    <Panel title="Scaling" aside={seen}>
      {scaling.error && <ErrorNotice error={scaling.error} />}
      {scaling.data?.modes.map((mode) => (
        <ModeNotice key={mode.mode} mode={mode} />
      ))}
      <CvPlot windows={windows} />
      <Table
        label="Windows of iterations"
        stacks
        columns={WINDOWS}
        rows={windows.slice(0, SHOWN)}
        keyOf={(row) => row.id}
        empty={
          scaling.isPending
            ? "Loading…"
            : "No window of iterations yet: one is judged each minute, from 40 steps on."
        }
      />
    </Panel>
  );
}

function ModeNotice({ mode }: { readonly mode: Mode }) {
  const ranks = mode.ranks.length > 0 ? `ranks ${mode.ranks.join(", ")}` : "";
  return (
    <div className="mb-3 rounded border border-line bg-slow-wash px-3 py-2">
      <p className="font-semibold">
        {MODES[mode.mode]}: {formatShare(mode.cost_share)} of an iteration
      </p>
      <p>{mode.statement}.</p>
      <p className="text-soft text-xs">
        {[
          ranks,
          mode.mode === "fabric_contention" && mode.place && `shared by ${mode.place}`,
          mode.windows === 1 ? "in 1 window" : `in ${mode.windows} windows`,
        ]
          .filter(Boolean)
          .join(" · ")}
        , newest <Age at={mode.last_judged_at} />. Nothing is broken and nobody is accused.
      </p>
    </div>
  );
}

export interface Bar {
  readonly key: string;
  readonly x: number;
  readonly height: number;
  readonly cv: number;
}

const PLOT = { height: 64, bar: 8, gap: 3, top: 0.2 } as const;

/** Bars in plot units, oldest left; the scale grows with the largest CV, at least up to 0.2. */
export function layoutBars(windows: readonly Window[]): { bars: readonly Bar[]; limitY: number } {
  const known = [...windows].reverse().filter((window) => window.cv !== null);
  const top = Math.max(PLOT.top, ...known.map((window) => window.cv ?? 0));
  const bars = known.map((window, index) => {
    const cv = window.cv ?? 0;
    const height = Math.max(1, (cv / top) * PLOT.height);
    return { key: window.id, x: index * (PLOT.bar + PLOT.gap), height, cv };
  });
  return { bars, limitY: PLOT.height * (1 - CV_UNEVEN / top) };
}

function CvPlot({ windows }: { readonly windows: readonly Window[] }) {
  const { bars, limitY } = layoutBars(windows);
  if (bars.length < 2) return null;
  const width = bars.length * (PLOT.bar + PLOT.gap) - PLOT.gap;
  const last = bars.at(-1)?.cv ?? 0;
  const most = Math.max(...bars.map((bar) => bar.cv));
  return (
    <figure className="mb-3">
      <figcaption className="mb-1 text-soft text-xs">
        CV of the iteration time, {bars.length} windows, oldest left: now {last.toFixed(3)}, at most{" "}
        {most.toFixed(3)}. Above the line ({CV_UNEVEN}) it is uneven.
      </figcaption>
      <svg
        viewBox={`0 0 ${width} ${PLOT.height}`}
        width={width}
        height={PLOT.height}
        className="max-w-full"
        aria-hidden="true"
      >
        {bars.map((bar) => (
          <rect
            key={bar.key}
            x={bar.x}
            y={PLOT.height - bar.height}
            width={PLOT.bar}
            height={bar.height}
            className={bar.cv >= CV_UNEVEN ? "fill-slow" : "fill-line-strong"}
          />
        ))}
        <line
          x1={0}
          x2={width}
          y1={limitY}
          y2={limitY}
          className="stroke-slow"
          strokeDasharray="3 3"
        />
      </svg>
    </figure>
  );
}
