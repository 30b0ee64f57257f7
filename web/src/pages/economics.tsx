import type { Schemas } from "../api/client";
import { useEconomics } from "../api/queries";
import { ErrorNotice } from "../components/error-notice";
import { Panel } from "../components/panel";
import { type Column, Table } from "../components/table";

type Outcome = Schemas["EconomicsOutcomeRead"];
type Parameter = Schemas["EconomicsParameterRead"];

/** `12,345`, `3.4`, `0`: hours and counts over five orders of magnitude. */
export function formatAmount(value: number): string {
  const digits = value > 0 && value < 10 ? 1 : 0;
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

/** `98.54 %`; a job that nearly never fails differs in the second digit. */
export function formatEttr(share: number): string {
  return `${(share * 100).toFixed(2)} %`;
}

/** How the runs differed, in a few words. */
export function spreadText(outcome: Outcome): string {
  return `${formatEttr(outcome.ettr_least)} to ${formatEttr(outcome.ettr_most)}`;
}

const OUTCOMES: readonly Column<Outcome>[] = [
  { title: "policy", cell: (row) => row.title },
  {
    title: "useful time",
    numeric: true,
    cell: (row) => <span title={spreadText(row)}>{formatEttr(row.ettr)}</span>,
  },
  { title: "GPU hours lost", numeric: true, cell: (row) => formatAmount(row.lost_hours) },
  { title: "down", numeric: true, cell: (row) => formatAmount(row.down_hours) },
  { title: "done again", numeric: true, cell: (row) => formatAmount(row.replay_hours) },
  { title: "smaller batch", numeric: true, cell: (row) => formatAmount(row.reduced_hours) },
  { title: "each step", numeric: true, cell: (row) => formatAmount(row.overhead_hours) },
  { title: "standbys", numeric: true, cell: (row) => formatAmount(row.standby_hours) },
  { title: "steps replayed", numeric: true, cell: (row) => formatAmount(row.replayed_steps) },
];

const PARAMETERS: readonly Column<Parameter>[] = [
  { title: "parameter", cell: (row) => <span className="font-mono">{row.name}</span> },
  {
    title: "value",
    numeric: true,
    cell: (row) => row.value.toLocaleString("en-US", { maximumSignificantDigits: 6 }),
  },
  { title: "unit", cell: (row) => row.unit },
  { title: "source", cell: (row) => row.source },
];

/** What failures would cost 100,000 steps of this job under three policies; simulated, never measured. */
export function Economics({ jobId }: { readonly jobId: string }) {
  const economics = useEconomics(jobId);
  const data = economics.data;
  return (
    <Panel title="What failures would cost" aside={data ? `simulated, ${data.seeds} runs` : ""}>
      {economics.error && <ErrorNotice error={economics.error} />}
      <Table
        label="Policies"
        stacks
        columns={OUTCOMES}
        rows={data?.outcomes ?? []}
        keyOf={(row) => row.policy}
        empty={data ? `Not simulated: ${data.refused}.` : "Loading…"}
      />
      {data && (
        <details className="mt-3">
          <summary className="cursor-pointer text-soft">
            {data.parameters.length} parameters: what was measured, published or assumed
          </summary>
          <Table
            label="Parameters"
            stacks
            columns={PARAMETERS}
            rows={data.parameters}
            keyOf={(row) => row.name}
            empty="None."
          />
        </details>
      )}
    </Panel>
  );
}
