import { Link } from "@tanstack/react-router";
import {
  isOver,
  type RepairAction,
  type RepairMember,
  type RepairPolicy,
  useHasSupervisors,
  useJobActions,
  usePolicies,
  useRepairState,
  useStandbys,
} from "../api/repair";
import { ErrorNotice } from "../components/error-notice";
import { Facts, Panel } from "../components/panel";
import { type Column, Table } from "../components/table";
import { Age } from "../lib/time";
import { SmallHeading, StatusChip } from "./marks";
import { Proposal } from "./proposal";
import { StopSwitch } from "./stop";
import { actionTitle, reasonText } from "./words";

const STANDBYS: readonly Column<RepairMember>[] = [
  { title: "node", cell: (row) => <span className="break-all">{row.node}</span> },
  {
    title: "state",
    cell: (row) => {
      const state = standbyState(row);
      return (
        <span className={state === "ready" ? "font-semibold text-good" : "text-slow"}>{state}</span>
      );
    },
  },
  {
    title: "failure domain",
    cell: (row) => <span className="break-all">{row.failure_domain || "–"}</span>,
  },
  {
    title: "member",
    cell: (row) => <span className="break-all font-mono text-xs">{row.member}</span>,
  },
  { title: "told", cell: (row) => <Age at={row.told_at} /> },
];

const ACTIONS: readonly Column<RepairAction>[] = [
  { title: "action", cell: (row) => actionTitle(row) },
  { title: "status", cell: (row) => <StatusChip status={row.status} /> },
  { title: "why", cell: (row) => reasonText(row.reason) },
  { title: "proposed", cell: (row) => <Age at={row.created_at} /> },
  {
    title: "incident",
    cell: (row) =>
      row.incident_id === null ? (
        "–"
      ) : (
        <Link
          to="/incidents/$incidentId"
          params={{ incidentId: row.incident_id }}
          search={{}}
          className="text-accent hover:underline"
        >
          see it
        </Link>
      ),
  },
];

const POLICIES: readonly Column<RepairPolicy>[] = [
  { title: "for", cell: (row) => (row.job === null ? "all jobs" : "this job") },
  { title: "cause", cell: (row) => row.cause?.replace("_", " ") ?? "all causes" },
  { title: "mode", cell: (row) => row.mode ?? "not set here" },
  { title: "stop switch", cell: (row) => (row.stopped ? "on" : "off") },
  { title: "limits", cell: (row) => <span className="break-words">{limitsText(row)}</span> },
  { title: "by", cell: (row) => row.updated_by },
];

export function standbyState(row: RepairMember): "ready" | "warming" | "no process" {
  if (!row.alive) return "no process";
  return row.ready ? "ready" : "warming";
}

/** `2 ready, 1 warming`. */
export function standbysText(rows: readonly RepairMember[]): string {
  const ready = rows.filter((row) => standbyState(row) === "ready").length;
  const warming = rows.filter((row) => standbyState(row) === "warming").length;
  return ready + warming === 0 ? "none" : `${ready} ready, ${warming} warming`;
}

export function limitsText(row: RepairPolicy): string {
  const set = Object.entries(row.limits).filter(([, value]) => value !== null);
  return set.map(([name, value]) => `${name} ${value}`).join(", ") || "–";
}

/** Policies that a job meets, the most exact one first: that one holds. */
export function fittingPolicies(
  rows: readonly RepairPolicy[],
  job: string,
): readonly RepairPolicy[] {
  const weight = (row: RepairPolicy) => (row.job === null ? 0 : 2) + (row.cause === null ? 0 : 1);
  return rows
    .filter((row) => row.job === null || row.job === job)
    .toSorted((a, b) => weight(b) - weight(a));
}

/** Where repair of a job stands: its standbys, who may act, and the switch that holds it. */
export function JobRepair({ jobId }: { readonly jobId: string }) {
  const supervised = useHasSupervisors(jobId);
  const standbys = useStandbys(jobId);
  const actions = useJobActions(jobId);
  const policies = usePolicies();
  const state = useRepairState(jobId, supervised.data === true);
  const error =
    supervised.error ?? standbys.error ?? actions.error ?? policies.error ?? state.error;
  const rows = standbys.data ?? [];
  const fitting = fittingPolicies(policies.data ?? [], jobId);
  const open = actions.data?.find((action) => !isOver(action));
  return (
    <Panel title="Repair" aside={supervised.data ? standbysText(rows) : ""}>
      {error && <ErrorNotice error={error} />}
      {supervised.isPending && <p className="text-soft">Loading…</p>}
      {supervised.data === false && (
        <p className="mb-3 text-soft">
          No rank of this job runs under a supervisor, so nothing can be repaired: start it with{" "}
          <code className="font-mono">paceline run --repair</code>.
        </p>
      )}
      {state.data && (
        <Facts
          entries={[
            ["state", `${state.data.state}, generation ${state.data.generation}`],
            ["standbys", standbysText(rows)],
          ]}
        />
      )}
      {policies.data && <StopSwitch job={jobId} policies={fitting} />}
      {open && open.incident_id === null && <Proposal actionId={open.id} unit="rank" />}
      {supervised.data && (
        <>
          <SmallHeading>Standbys</SmallHeading>
          <Table
            label="Standbys"
            stacks
            columns={STANDBYS}
            rows={rows}
            keyOf={(row) => `${row.attempt} ${row.member}`}
            empty="None: a lost rank means the checkpoint on disk."
          />
        </>
      )}
      {policies.data && <Policies rows={fitting} />}
      {actions.data && actions.data.length > 0 && (
        <>
          <SmallHeading>Newest actions</SmallHeading>
          <Table
            label="Newest actions"
            stacks
            columns={ACTIONS}
            rows={actions.data}
            keyOf={(row) => row.id}
            empty=""
          />
        </>
      )}
    </Panel>
  );
}

function Policies({ rows }: { readonly rows: readonly RepairPolicy[] }) {
  return (
    <>
      <SmallHeading>Mode, the most exact policy first</SmallHeading>
      <Table
        label="Policies"
        stacks
        columns={POLICIES}
        rows={rows}
        keyOf={(row) => `${row.job} ${row.cause}`}
        empty="No policy fits: the remediator's own mode holds, which is observe unless it was started with another one."
      />
    </>
  );
}
