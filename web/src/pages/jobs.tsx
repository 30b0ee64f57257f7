import { Link } from "@tanstack/react-router";
import type { JobSummary } from "../api/client";
import { useJobs } from "../api/queries";
import { ErrorNotice } from "../components/error-notice";
import { Panel } from "../components/panel";
import { type Column, Table } from "../components/table";
import { Age } from "../lib/time";

const COLUMNS: readonly Column<JobSummary>[] = [
  {
    title: "job",
    cell: (row) => (
      <Link
        to="/jobs/$jobId"
        params={{ jobId: row.id }}
        search={{}}
        className="font-semibold text-accent hover:underline"
      >
        {row.name || row.id}
      </Link>
    ),
  },
  { title: "state", cell: (row) => row.state },
  { title: "ranks", numeric: true, cell: (row) => row.world_size },
  { title: "nodes", numeric: true, cell: (row) => row.nodes_count },
  { title: "communicators", numeric: true, cell: (row) => row.communicators_count },
  { title: "open incidents", numeric: true, cell: (row) => <OpenIncidents job={row} /> },
  { title: "user", cell: (row) => row.user },
  { title: "started", cell: (row) => <Age at={row.started_at} /> },
];

function OpenIncidents({ job }: { readonly job: JobSummary }) {
  if (job.open_incidents_count === 0) return <span className="text-soft">0</span>;
  return (
    <Link
      to="/incidents"
      search={{ job: job.id }}
      className="font-semibold text-hang hover:underline"
    >
      {job.open_incidents_count}
    </Link>
  );
}

export function JobsPage() {
  const jobs = useJobs();
  return (
    <>
      <h1 className="mb-3 font-bold text-lg">Jobs</h1>
      <Panel title="Jobs">
        {jobs.error && <ErrorNotice error={jobs.error} />}
        <Table
          label="Jobs"
          columns={COLUMNS}
          rows={jobs.data?.items ?? []}
          keyOf={(row) => row.id}
          empty={
            jobs.isPending
              ? "Loading…"
              : "No job yet. Start one with `paceline run -- python train.py`."
          }
        />
      </Panel>
    </>
  );
}
