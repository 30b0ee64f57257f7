import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import type { IncidentSummary } from "../api/client";
import { useIncidents } from "../api/queries";
import { Button } from "../components/button";
import { ErrorNotice } from "../components/error-notice";
import { Panel } from "../components/panel";
import { type Column, Table } from "../components/table";
import { StatusText, VerdictBadge } from "../components/verdict";
import { useKeys } from "../lib/keys";
import { Age } from "../lib/time";
import { type IncidentFilter, incidentsRoute } from "../router";

const STATUSES = ["open", "acknowledged", "resolved"];
const VERDICTS = [
  "H1",
  "H2",
  "H3",
  "S1",
  "S2",
  "S3",
  "DEADLOCK",
  "INIT",
  "DEAD_PROCESS",
  "INCONCLUSIVE",
];

const COLUMNS: readonly Column<IncidentSummary>[] = [
  {
    title: "incident",
    cell: (row) => (
      <Link
        to="/incidents/$incidentId"
        params={{ incidentId: row.id }}
        search={{}}
        className="font-semibold text-accent hover:underline"
      >
        {row.label}
      </Link>
    ),
  },
  { title: "class", cell: (row) => <VerdictBadge verdict={row.verdict_class} /> },
  { title: "first cause", cell: (row) => <span className="block min-w-64">{row.summary}</span> },
  {
    title: "job",
    cell: (row) => (
      <Link
        to="/jobs/$jobId"
        params={{ jobId: row.job }}
        search={{}}
        className="block max-w-48 truncate hover:underline"
        title={row.job}
      >
        {row.job}
      </Link>
    ),
  },
  { title: "waiting", numeric: true, cell: (row) => `${row.victims_count} ranks` },
  { title: "status", cell: (row) => <StatusText status={row.status} /> },
  { title: "opened", cell: (row) => <Age at={row.opened_at} /> },
];

export function IncidentsPage() {
  const filter = incidentsRoute.useSearch();
  const incidents = useIncidents(filter);
  const rows = useMemo(
    () => incidents.data?.pages.flatMap((page) => page.items) ?? [],
    [incidents.data],
  );
  const current = useListCursor(rows);
  return (
    <>
      <h1 className="mb-3 font-bold text-lg">Incidents</h1>
      <Filters filter={filter} />
      <Panel title="Incidents" aside={`${rows.length}${incidents.hasNextPage ? "+" : ""} shown`}>
        {incidents.error && <ErrorNotice error={incidents.error} />}
        <Table
          label="Incidents"
          columns={COLUMNS}
          rows={rows}
          keyOf={(row) => row.id}
          empty={
            incidents.isPending ? "Loading…" : "No incident matches. Quiet is the normal state."
          }
          {...(current && { current })}
        />
        {incidents.hasNextPage && (
          <div className="mt-3">
            <Button onClick={() => void incidents.fetchNextPage()}>Older incidents</Button>
          </div>
        )}
      </Panel>
    </>
  );
}

/** `j`, `k` and Enter on the list; returns the id of the chosen row. */
function useListCursor(rows: readonly IncidentSummary[]): string | undefined {
  const [at, setAt] = useState(-1);
  const navigate = useNavigate();
  const chosen = rows[at]?.id;
  const bindings = useMemo(
    () => ({
      j: () => setAt((index) => Math.min(index + 1, rows.length - 1)),
      k: () => setAt((index) => Math.max(index - 1, 0)),
      ...(chosen && {
        enter: () =>
          void navigate({
            to: "/incidents/$incidentId",
            params: { incidentId: chosen },
            search: {},
          }),
      }),
    }),
    [rows.length, chosen, navigate],
  );
  useKeys(bindings);
  return chosen;
}

function Filters({ filter }: { readonly filter: IncidentFilter }) {
  const navigate = useNavigate({ from: "/incidents" });
  const choose = (name: keyof IncidentFilter, value: string) => {
    const { [name]: _dropped, ...rest } = filter;
    void navigate({ search: value ? { ...rest, [name]: value } : rest });
  };
  return (
    <div className="mb-3 flex flex-wrap items-end gap-3">
      <Choice
        label="Status"
        value={filter.status}
        options={STATUSES}
        onChange={(v) => choose("status", v)}
      />
      <Choice
        label="Class"
        value={filter.verdict}
        options={VERDICTS}
        onChange={(v) => choose("verdict", v)}
      />
      {filter.job && <Button onClick={() => choose("job", "")}>job {filter.job} ×</Button>}
    </div>
  );
}

interface ChoiceProps {
  readonly label: string;
  readonly value: string | undefined;
  readonly options: readonly string[];
  readonly onChange: (value: string) => void;
}

function Choice({ label, value, options, onChange }: ChoiceProps) {
  return (
    <label className="text-soft text-xs">
      <span className="mb-0.5 block">{label}</span>
      <select
        value={value ?? ""}
        onChange={(event) => onChange(event.target.value)}
        className="rounded border border-line-strong bg-surface px-2 py-1 text-ink text-sm"
      >
        <option value="">all</option>
        {options.map((option) => (
          <option key={option}>{option}</option>
        ))}
      </select>
    </label>
  );
}
