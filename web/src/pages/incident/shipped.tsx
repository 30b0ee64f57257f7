import type { Schemas } from "../../api/client";
import { type Column, Table } from "../../components/table";
import { formatClock } from "../../lib/time";

type Shipped = Schemas["ShippedRead"];
type Shipment = Schemas["ShipmentRead"];

const REASONS: Readonly<Record<Shipment["reason"], string>> = {
  root: "first cause",
  witness: "waits",
};
const STATES: Readonly<Record<Shipment["state"], string>> = {
  pending: "asked",
  shipped: "shipped",
  failed: "could not",
  expired: "no answer in time",
  dropped: "no longer kept",
};

/** `0 B`, `812 kB`, `3.4 MB`. */
export function formatBytes(count: number): string {
  if (count < 1000) return `${count} B`;
  if (count < 1_000_000) return `${Math.round(count / 1000)} kB`;
  return `${(count / 1_000_000).toFixed(1)} MB`;
}

/** What the state means for whoever wants to kill the job. */
export function stateWords(shipped: Shipped): string {
  const got = shipped.nodes.filter((node) => node.state === "shipped").length;
  switch (shipped.state) {
    case "pending":
      return "Nodes are being asked for logs, stacks and dumps: kill nothing yet.";
    case "complete":
      return got > 0
        ? "The nodes that were asked have answered; their logs are in the bundle."
        : "The nodes that were asked have answered; no logs are kept.";
    case "expired":
      return "Some nodes did not answer in time; what has come is in the bundle.";
    default:
      return "";
  }
}

const COLUMNS: readonly Column<Shipment>[] = [
  { title: "node", cell: (row) => <span className="break-all font-mono">{row.node}</span> },
  { title: "why", cell: (row) => REASONS[row.reason] },
  {
    title: "state",
    cell: (row) => (
      <>
        {STATES[row.state]}
        {row.state === "failed" && row.message && (
          <span className="block break-words text-soft text-xs">{row.message}</span>
        )}
      </>
    ),
  },
  {
    title: "size",
    numeric: true,
    cell: (row) => (row.bytes_count > 0 ? formatBytes(row.bytes_count) : "–"),
  },
  {
    title: "at",
    cell: (row) => (row.received_at ? formatClock(row.received_at) : "–"),
  },
];

/** Shown only where nodes were asked. */
export function ShippedLogs({ shipped }: { readonly shipped: Shipped }) {
  if (shipped.nodes.length === 0) return null;
  return (
    <section aria-label="Logs from the nodes" className="mt-4">
      <h3 className="mb-1 text-soft text-xs uppercase tracking-wider">Logs from the nodes</h3>
      <p className="mb-2">{stateWords(shipped)}</p>
      {shipped.says && <p className="mb-2 break-words">Read on arrival: {shipped.says}.</p>}
      <Table
        label="What the nodes shipped"
        stacks
        columns={COLUMNS}
        rows={shipped.nodes}
        keyOf={(row) => row.id}
        empty=""
      />
    </section>
  );
}
