import { Link, useNavigate } from "@tanstack/react-router";
import type { Communicator } from "../api/client";
import { useCommunicators, useJob } from "../api/queries";
import { ErrorNotice } from "../components/error-notice";
import { Facts, Panel } from "../components/panel";
import { type Column, Table } from "../components/table";
import { Age } from "../lib/time";
import { JobMap } from "../rankmap/job-map";
import { JobRepair } from "../repair/of-job";
import { jobRoute } from "../router";
import { Economics } from "./economics";
import { Scaling } from "./scaling";

const COMMUNICATORS: readonly Column<Communicator>[] = [
  { title: "communicator", cell: (row) => <span className="font-mono">{row.name}</span> },
  { title: "kind", cell: (row) => row.kind || "–" },
  { title: "ranks", cell: (row) => <span className="font-mono">{row.ranks}</span> },
  { title: "size", numeric: true, cell: (row) => row.size },
  { title: "backend", cell: (row) => row.backend },
  { title: "waiting", numeric: true, cell: (row) => row.waiting_count },
  {
    title: "first cause",
    cell: (row) =>
      row.roots.length > 0 ? (
        <span className="font-semibold text-hang">rank {row.roots.join(", ")}</span>
      ) : (
        "–"
      ),
  },
];

export function JobPage() {
  const { jobId } = jobRoute.useParams();
  const { rank = 0 } = jobRoute.useSearch();
  const navigate = useNavigate({ from: "/jobs/$jobId" });
  const job = useJob(jobId);
  const communicators = useCommunicators(jobId);
  if (job.error) return <ErrorNotice error={job.error} />;
  if (!job.data) return <p className="text-soft">Loading…</p>;
  const data = job.data;
  return (
    <>
      <h1 className="mb-1 break-all font-bold text-lg">{data.name || data.id}</h1>
      <p className="mb-3 text-soft">
        {data.state}
        {data.end_reason && ` (${data.end_reason})`} · {data.world_size} ranks on {data.nodes_count}{" "}
        node
        {data.nodes_count === 1 ? "" : "s"} · started <Age at={data.started_at} />
        {data.open_incidents_count > 0 && (
          <>
            {" · "}
            <Link to="/incidents" search={{ job: data.id }} className="font-semibold text-hang">
              {data.open_incidents_count} open incident{data.open_incidents_count === 1 ? "" : "s"}
            </Link>
          </>
        )}
      </p>
      <div className="grid gap-4 lg:grid-cols-[3fr_2fr]">
        <Panel title="Ranks">
          <JobMap
            jobId={jobId}
            selected={rank}
            onSelect={(next) => void navigate({ search: { rank: next }, replace: true })}
          />
        </Panel>
        <Panel title="Job">
          <Facts
            entries={[
              [
                "id",
                <span key="id" className="break-all font-mono">
                  {data.id}
                </span>,
              ],
              [
                "attempt",
                <span key="attempt" className="break-all font-mono">
                  {data.attempt}
                </span>,
              ],
              ["known from", `${data.id_source}, attempt ${data.attempt_source}`],
              ["cluster", data.cluster || "–"],
              ["user", data.user || "–"],
              [
                "mesh",
                data.axes.map((axis) => `${axis.name} ${axis.size}`).join(" × ") || "unknown",
              ],
              ["mesh known from", data.coordinate_source],
              ["versions", data.versions.map((v) => `${v.name} ${v.version}`).join(", ") || "–"],
              ["attempts", data.attempts.length],
            ]}
          />
        </Panel>
        <div className="min-w-0 lg:col-span-2">
          <JobRepair jobId={jobId} />
        </div>
        <div className="min-w-0 lg:col-span-2">
          <Scaling jobId={jobId} />
        </div>
        <div className="min-w-0 lg:col-span-2">
          <Economics jobId={jobId} />
        </div>
        <div className="min-w-0 lg:col-span-2">
          <Panel title="Communicators" aside={`${communicators.data?.items.length ?? 0}`}>
            <Table
              label="Communicators"
              columns={COMMUNICATORS}
              rows={communicators.data?.items ?? []}
              keyOf={(row) => row.communicator}
              empty="None registered yet."
            />
          </Panel>
        </div>
      </div>
    </>
  );
}
