import type { AuditEntry } from "../api/client";
import { useAudit } from "../api/queries";
import { ErrorNotice } from "../components/error-notice";
import { Panel } from "../components/panel";
import { type Column, Table } from "../components/table";
import { Age } from "../lib/time";

const COLUMNS: readonly Column<AuditEntry>[] = [
  { title: "when", cell: (row) => <Age at={row.at} /> },
  { title: "who", cell: (row) => `${row.actor} (${row.actor_type}, ${row.source})` },
  { title: "what", cell: (row) => row.action },
  { title: "on", cell: (row) => <span className="break-all font-mono">{row.target_id}</span> },
  {
    title: "details",
    cell: (row) => row.details.map((detail) => `${detail.name}: ${detail.value}`).join(", ") || "–",
  },
];

export function AuditPage() {
  const audit = useAudit();
  return (
    <>
      <h1 className="mb-3 font-bold text-lg">Audit</h1>
      <Panel title="Who changed what">
        {audit.error && <ErrorNotice error={audit.error} />}
        <Table
          label="Audit log"
          columns={COLUMNS}
          rows={audit.data?.items ?? []}
          keyOf={(row) => String(row.id)}
          empty={audit.isPending ? "Loading…" : "No changes yet."}
        />
      </Panel>
    </>
  );
}
