import type { Incident, Schemas } from "../../api/client";
import { Facts } from "../../components/panel";
import { type Column, Table } from "../../components/table";
import { formatClock } from "../../lib/time";
import { describeRoot } from "./summary";

type Communicator = Schemas["CommunicatorInvolved"];

const COLUMNS: readonly Column<Communicator>[] = [
  {
    title: "communicator",
    cell: (row) => (
      <span className={`font-mono ${row.is_root ? "font-semibold text-hang" : ""}`}>
        {row.name}
        {row.is_root && " (first cause)"}
      </span>
    ),
  },
  { title: "kind", cell: (row) => row.kind || "–" },
  { title: "ranks", cell: (row) => <span className="font-mono">{row.ranks}</span> },
  { title: "backend", cell: (row) => row.backend },
  { title: "waiting", numeric: true, cell: (row) => `${row.victims_count} of ${row.size}` },
];

export function WhatHappened({ incident }: { readonly incident: Incident }) {
  const { what_happened: what } = incident;
  return (
    <Facts
      entries={[
        ["first cause", <Roots key="roots" incident={incident} />],
        ["operation", what.operation ? describeOperation(what.operation) : "–"],
        [
          "only waiting",
          what.victims_count > 0 ? `${what.victims_count} ranks: ${what.victims}` : "no other rank",
        ],
        ["since", formatClock(what.stalled_at)],
      ]}
    />
  );
}

/** The communicator of the first cause; the others, which only have waiting members, on request. */
export function Involved({ communicators }: { readonly communicators: readonly Communicator[] }) {
  const others = communicators.filter((row) => !row.is_root);
  if (communicators.length === 0) return null;
  return (
    <div className="mt-3">
      <Table
        label="Communicator of the first cause"
        columns={COLUMNS}
        rows={communicators.filter((row) => row.is_root)}
        keyOf={(row) => row.communicator}
        empty="The first cause is outside any communicator."
      />
      {others.length > 0 && (
        <details className="mt-2">
          <summary className="cursor-pointer text-soft">
            {others.length} other communicators have waiting members
          </summary>
          <Table
            label="Other communicators with waiting members"
            columns={COLUMNS}
            rows={others}
            keyOf={(row) => row.communicator}
            empty=""
          />
        </details>
      )}
    </div>
  );
}

function Roots({ incident }: { readonly incident: Incident }) {
  if (incident.roots.length === 0) return <span>not decided</span>;
  return (
    <ul>
      {incident.roots.map((root) => (
        <li key={describeRoot(root)} className="font-semibold">
          {describeRoot(root)}
        </li>
      ))}
    </ul>
  );
}

function describeOperation(operation: Schemas["OperationRead"]): string {
  const round = operation.round > 0 ? ` round ${operation.round}` : "";
  const detail = operation.detail ? ` (${operation.detail})` : "";
  return `${operation.function}${round} of ${operation.communicator_name}${detail}`;
}
