import type { Incident, Root } from "../../api/client";

/** The rank that the map shows first. */
export function firstRootRank(roots: readonly Root[]): number {
  for (const root of roots) {
    const rank = root.rank ?? root.ranks[0];
    if (rank !== undefined && rank !== null) return rank;
  }
  return 0;
}

export function describeRoot(root: Root): string {
  const place = [root.node, root.gpu === null ? null : `GPU ${root.gpu}`]
    .filter(Boolean)
    .join(", ");
  const where = place ? ` (${place})` : "";
  if (root.kind === "link") return `link ${root.rank} → ${root.peer_rank}${where}`;
  if (root.kind === "group") return `one of ranks ${root.ranks.join(", ")}${where}`;
  if (root.kind === "node") return `node ${root.node ?? root.name ?? "?"}`;
  if (root.rank !== null) return `rank ${root.rank}${where}`;
  return root.name ?? root.kind;
}

/** Text for a chat: one line that decides, one that explains, one that links. */
export function summaryText(incident: Incident, url: string): string {
  const lines = [
    `${incident.label} ${incident.verdict_class} ${incident.summary}`,
    `job ${incident.job_name || incident.job}, confidence ${Math.round(incident.why.confidence * 100)} %, owner ${incident.owner}`,
    url,
  ];
  return lines.join("\n");
}

export async function copySummary(incident: Incident): Promise<void> {
  const text = summaryText(incident, window.location.href);
  // There is no clipboard object on a page that came over plain http.
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copyBySelection(text);
}

function copyBySelection(text: string): void {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
