import { Link } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import { VerdictBadge } from "../../components/verdict";
import { Age } from "../../lib/time";

type MemoryRead = Schemas["MemoryRead"];
type NodeFinding = Schemas["NodeFindingRead"];
type VersionFinding = Schemas["VersionFindingRead"];

const NODE_REASONS: Readonly<Record<NodeFinding["reason"], string>> = {
  nothing_known: "never a first cause in another job",
  no_offence: "only software incidents, which say nothing about the machine",
  few_jobs: "too few jobs to call it a habit",
  one_program: "always the same program: rather its code",
  no_comparison: "too few nodes to say what is usual",
  as_others: "not more often than chance explains",
  repeat_offender: "repeat offender",
};

/** `GPU 3: repeat offender, in 3 other jobs within 30 days`, to be read after the node's name. */
export function nodeText(node: NodeFinding, days: number): string {
  const jobs = node.jobs_count === 1 ? "1 other job" : `${node.jobs_count} other jobs`;
  const count = node.jobs_count > 0 ? `, in ${jobs} within ${days} days` : "";
  return `${node.gpu === null ? "" : ` GPU ${node.gpu}`}: ${NODE_REASONS[node.reason]}${count}`;
}

/** What the same symptom elsewhere says about the versions; nothing where it says nothing. */
export function versionText(version: VersionFinding, days: number): string | null {
  if (version.root === null) return null;
  const seen = `${version.jobs_count} jobs on ${version.nodes_count} nodes showed this symptom with ${version.versions} within ${days} days`;
  return version.reason === "same_version"
    ? `${seen}, and ${version.other_jobs_count} of ${version.jobs_of_others} jobs with other versions: it points to the version and not to a node`
    : `${seen}. Nearly all jobs run these versions, so it may be what else they share; not a node`;
}

/** Shown only where there is something to remember. */
export function Memory({ memory }: { readonly memory: MemoryRead }) {
  const nodes = memory.nodes.filter((node) => node.incidents_count > 0);
  const version = versionText(memory.version, memory.version_days);
  if (nodes.length === 0 && version === null) return null;
  return (
    <section aria-label="Other jobs" className="mt-4">
      <h3 className="mb-1 text-soft text-xs uppercase tracking-wider">In other jobs</h3>
      {version && <p className="mb-2">{version}.</p>}
      {nodes.map((node) => (
        <div key={node.node} className="mb-2">
          <p className={node.reason === "repeat_offender" ? "font-semibold" : ""}>
            <Link
              to="/nodes/$nodeName"
              params={{ nodeName: node.node }}
              className="break-all text-accent hover:underline"
            >
              {node.node}
            </Link>
            {nodeText(node, memory.node_days)}
          </p>
          <ul className="mt-1 grid gap-1">
            {node.past.map((past) => (
              <li key={`${past.incident_id} ${past.gpu}`} className="flex flex-wrap gap-2">
                <Link
                  to="/incidents/$incidentId"
                  params={{ incidentId: past.incident_id }}
                  search={{}}
                  className="text-accent hover:underline"
                >
                  {past.label}
                </Link>
                <VerdictBadge verdict={past.verdict_class} />
                <span className="break-all">{past.job}</span>
                <span className="text-soft">
                  <Age at={past.opened_at} />
                </span>
              </li>
            ))}
          </ul>
        </div>
      ))}
    </section>
  );
}
