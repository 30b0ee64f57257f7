import { Link } from "@tanstack/react-router";
import type { Delivery } from "../api/client";
import { useDeliveries, useReplayDelivery } from "../api/queries";
import { Button } from "../components/button";
import { ErrorNotice } from "../components/error-notice";
import { Panel } from "../components/panel";
import { type Column, Table } from "../components/table";
import { Age } from "../lib/time";

const COLUMNS: readonly Column<Delivery>[] = [
  { title: "event", cell: (row) => row.event_type },
  {
    title: "incident",
    cell: (row) => (
      <Link
        to="/incidents/$incidentId"
        params={{ incidentId: row.incident_id }}
        search={{}}
        className="text-accent hover:underline"
      >
        open
      </Link>
    ),
  },
  { title: "to", cell: (row) => row.channel },
  { title: "status", cell: (row) => row.status },
  { title: "attempts", numeric: true, cell: (row) => row.attempts_count },
  { title: "answer", cell: (row) => row.response_status ?? (row.error || "–") },
  { title: "updated", cell: (row) => <Age at={row.updated_at} /> },
];

export function DeliveriesPage() {
  const deliveries = useDeliveries();
  const replay = useReplayDelivery();
  const columns: readonly Column<Delivery>[] = [
    ...COLUMNS,
    {
      title: "again",
      cell: (row) => (
        <Button onClick={() => replay.mutate(row.id)} disabled={replay.isPending}>
          Send again
        </Button>
      ),
    },
  ];
  return (
    <>
      <h1 className="mb-3 font-bold text-lg">Deliveries</h1>
      <Panel title="Whom we told">
        {(deliveries.error ?? replay.error) && (
          <ErrorNotice error={(deliveries.error ?? replay.error) as Error} />
        )}
        <Table
          label="Deliveries"
          columns={columns}
          rows={deliveries.data?.items ?? []}
          keyOf={(row) => row.id}
          empty={deliveries.isPending ? "Loading…" : "Nothing was sent yet."}
        />
      </Panel>
    </>
  );
}
