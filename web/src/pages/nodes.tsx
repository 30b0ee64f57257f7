import { Link } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { useNode, useNodes } from "../api/queries";
import { ErrorNotice } from "../components/error-notice";
import { Panel } from "../components/panel";
import { type Column, Table } from "../components/table";
import { VerdictBadge } from "../components/verdict";
import { Age } from "../lib/time";
import { nodeRoute } from "../router";

type NodeTotals = Schemas["NodeTotalsRead"];
type PastIncident = Schemas["PastIncidentRead"];

/** What the counts alone say; an incident's page weighs them against chance. */
export function habitText(node: NodeTotals): string {
  if (node.offences_count === 0) return "only software";
  if (node.jobs_count < 2) return "one job";
  if (node.programs_count < 2) return "one program: rather its code";
  return "several jobs and programs";
}

function isHabit(node: NodeTotals): boolean {
  return node.jobs_count >= 2 && node.programs_count >= 2;
}

const NODES: readonly Column<NodeTotals>[] = [
  {
    title: "node",
    cell: (row) => (
      <Link
        to="/nodes/$nodeName"
        params={{ nodeName: row.node }}
        className="break-all font-semibold text-accent hover:underline"
      >
        {row.node}
      </Link>
    ),
  },
  {
    title: "offences in",
    cell: (row) => (
      <span className={isHabit(row) ? "font-semibold text-hang" : "text-soft"}>
        {habitText(row)}
      </span>
    ),
  },
  { title: "jobs", numeric: true, cell: (row) => row.jobs_count },
  { title: "programs", numeric: true, cell: (row) => row.programs_count },
  { title: "offences", numeric: true, cell: (row) => row.offences_count },
  { title: "incidents", numeric: true, cell: (row) => row.incidents_count },
  { title: "last", cell: (row) => <Age at={row.last_opened_at} /> },
];

const PAST: readonly Column<PastIncident>[] = [
  {
    title: "incident",
    cell: (row) => (
      <Link
        to="/incidents/$incidentId"
        params={{ incidentId: row.incident_id }}
        search={{}}
        className="font-semibold text-accent hover:underline"
      >
        {row.label}
      </Link>
    ),
  },
  { title: "verdict", cell: (row) => <VerdictBadge verdict={row.verdict_class} /> },
  { title: "where", cell: (row) => (row.gpu === null ? row.kind : `${row.kind}, GPU ${row.gpu}`) },
  {
    title: "counts against it",
    cell: (row) => (row.is_offence ? "yes" : <span className="text-soft">no, software</span>),
  },
  {
    title: "job",
    cell: (row) => (
      <Link
        to="/jobs/$jobId"
        params={{ jobId: row.job }}
        search={{}}
        className="break-all text-accent hover:underline"
      >
        {row.job}
      </Link>
    ),
  },
  { title: "opened", cell: (row) => <Age at={row.opened_at} /> },
];

export function NodesPage() {
  const nodes = useNodes();
  const days = nodes.data?.window_days;
  return (
    <>
      <h1 className="mb-3 font-bold text-lg">Nodes</h1>
      <Panel title="First causes by node" aside={days && `within ${days} days`}>
        {nodes.error && <ErrorNotice error={nodes.error} />}
        <Table
          label="Nodes"
          stacks
          columns={NODES}
          rows={nodes.data?.items ?? []}
          keyOf={(row) => row.node}
          empty={nodes.isPending ? "Loading…" : "No node was a first cause of an incident."}
        />
        <p className="mt-3 max-w-prose text-soft text-xs">
          An offence is an incident of a kind that a machine can cause. Whether a node has more of
          them than chance explains is weighed on the page of each of its incidents.
        </p>
      </Panel>
    </>
  );
}

export function NodePage() {
  const { nodeName } = nodeRoute.useParams();
  const node = useNode(nodeName);
  return (
    <>
      <p className="mb-1">
        <Link to="/nodes" className="text-accent hover:underline">
          Nodes
        </Link>
      </p>
      <h1 className="mb-3 break-all font-bold text-lg">{nodeName}</h1>
      <Panel
        title="Incidents that it was a first cause of"
        aside={node.data && `within ${node.data.window_days} days`}
      >
        {node.error && <ErrorNotice error={node.error} />}
        <Table
          label="Incidents of the node"
          stacks
          columns={PAST}
          rows={node.data?.items ?? []}
          keyOf={(row) => `${row.incident_id} ${row.gpu}`}
          empty={node.isPending ? "Loading…" : "It was never a first cause."}
        />
      </Panel>
    </>
  );
}
