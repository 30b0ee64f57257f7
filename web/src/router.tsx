import { createRootRoute, createRoute, createRouter, redirect } from "@tanstack/react-router";
import { Shell } from "./components/shell";
import { AuditPage } from "./pages/audit";
import { DeliveriesPage } from "./pages/deliveries";
import { IncidentPage } from "./pages/incident/page";
import { IncidentsPage } from "./pages/incidents";
import { JobPage } from "./pages/job";
import { JobsPage } from "./pages/jobs";
import { NodePage, NodesPage } from "./pages/nodes";

const rootRoute = createRootRoute({ component: Shell });

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

function rank(value: unknown): number | undefined {
  return typeof value === "number" && Number.isInteger(value) && value >= 0 ? value : undefined;
}

export const indexRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/incidents" });
  },
});

export const jobsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/jobs",
  component: JobsPage,
});

export const jobRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/jobs/$jobId",
  component: JobPage,
  validateSearch: (search: Record<string, unknown>): { rank?: number } => {
    const selected = rank(search.rank);
    return selected === undefined ? {} : { rank: selected };
  },
});

export const incidentsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/incidents",
  component: IncidentsPage,
  validateSearch: (search: Record<string, unknown>): IncidentFilter => {
    const [status, verdict, job] = [text(search.status), text(search.verdict), text(search.job)];
    return { ...(status && { status }), ...(verdict && { verdict }), ...(job && { job }) };
  },
});

export interface IncidentFilter {
  readonly status?: string;
  readonly verdict?: string;
  readonly job?: string;
}

export const incidentRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/incidents/$incidentId",
  component: IncidentPage,
  validateSearch: (search: Record<string, unknown>): { rank?: number } => {
    const selected = rank(search.rank);
    return selected === undefined ? {} : { rank: selected };
  },
});

export const nodesRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/nodes",
  component: NodesPage,
});

export const nodeRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/nodes/$nodeName",
  component: NodePage,
});

export const deliveriesRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/deliveries",
  component: DeliveriesPage,
});

export const auditRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/audit",
  component: AuditPage,
});

const tree = rootRoute.addChildren([
  indexRoute,
  jobsRoute,
  jobRoute,
  incidentsRoute,
  incidentRoute,
  nodesRoute,
  nodeRoute,
  deliveriesRoute,
  auditRoute,
]);

export function createConsoleRouter() {
  return createRouter({ routeTree: tree, defaultPreload: "intent" });
}

declare module "@tanstack/react-router" {
  interface Register {
    router: ReturnType<typeof createConsoleRouter>;
  }
}
