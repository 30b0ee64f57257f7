import type { Schemas } from "../../api/client";
import { Facts } from "../../components/panel";
import { type Column, Table } from "../../components/table";
import { VerdictBadge } from "../../components/verdict";
import { formatClock } from "../../lib/time";

type Why = Schemas["Why"];

const EVIDENCE: readonly Column<Schemas["EvidenceRead"]>[] = [
  {
    title: "",
    cell: (row) =>
      row.supports ? (
        <span title="supports the verdict" className="text-good">
          for
        </span>
      ) : (
        <span title="speaks against the verdict" className="text-slow">
          against
        </span>
      ),
  },
  {
    title: "rule",
    cell: (row) => <span className="break-words font-mono text-xs">{row.rule}</span>,
  },
  { title: "what it saw", cell: (row) => row.statement },
  {
    title: "inputs",
    cell: (row) => (
      <span className="block font-mono text-xs">
        {row.inputs.map((input) => (
          <span key={input.name} className="block break-words">
            {input.name}={input.value}
          </span>
        ))}
      </span>
    ),
  },
  { title: "threshold", cell: (row) => row.threshold || "–" },
];

export function Evidence({ why }: { readonly why: Why }) {
  const { coverage } = why;
  return (
    <>
      <Table
        label="Evidence"
        stacks
        columns={EVIDENCE}
        rows={why.evidence}
        keyOf={(row) => `${row.rule} ${row.statement}`}
        empty="No rule has spoken."
      />
      <div className="mt-3">
        <Facts
          entries={[
            [
              "coverage",
              `${coverage.ranks_reporting} of ${coverage.ranks_expected} ranks, ` +
                `${coverage.communicators_complete} of ${coverage.communicators_expected} communicators`,
            ],
            ["operations not recorded", coverage.operations_dropped],
            ["sources", coverage.sources.join(", ") || "–"],
            ...(why.would_decide ? [["would decide", why.would_decide] as const] : []),
          ]}
        />
      </div>
      <Revisions why={why} />
    </>
  );
}

function Revisions({ why }: { readonly why: Why }) {
  if (why.revisions.length < 2) return null;
  return (
    <details className="mt-3">
      <summary className="cursor-pointer text-soft">
        {why.revisions.length} revisions of this verdict
      </summary>
      <ul className="mt-2 grid gap-1">
        {why.revisions.map((revision) => (
          <li key={revision.id} className="flex flex-wrap items-baseline gap-2">
            <span className="text-soft">{formatClock(revision.judged_at)}</span>
            <VerdictBadge verdict={revision.verdict_class} />
            <span>{revision.resolved ? "progress resumed" : revision.summary}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}
