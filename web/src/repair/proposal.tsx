import type { ReactNode } from "react";
import type { Schemas } from "../api/client";
import { isOver, isUnderWay, type RepairDetail, useRepairAction } from "../api/repair";
import { ErrorNotice } from "../components/error-notice";
import { Facts } from "../components/panel";
import { useNow } from "../lib/time";
import { expectedCost } from "./cost";
import { Decide } from "./decide";
import { CheckMark, SmallHeading, StatusChip } from "./marks";
import { actionTitle, checkTitle, formatLeft, modeText, reasonText, stepsText } from "./words";

interface ProposalProps {
  readonly actionId: string;
  /** What an hour of one rank is counted as. */
  readonly unit: Schemas["CostRead"]["unit"];
  /** Who has to look at it where no machine is to blame. */
  readonly owner?: string;
}

/** One action: what would be done, to whom, at what cost, what it waits for, and the decision. */
export function Proposal({ actionId, unit, owner }: ProposalProps) {
  const found = useRepairAction(actionId);
  if (found.data === undefined) {
    return found.error ? (
      <ErrorNotice error={found.error} />
    ) : (
      <p className="text-soft">Loading the proposal…</p>
    );
  }
  const action = found.data;
  return (
    <section aria-label="Proposal" className="mt-4 border-line border-t pt-3">
      {found.error && <ErrorNotice error={found.error} />}
      <p className="mb-1 flex flex-wrap items-baseline gap-x-2 gap-y-1">
        <span className="font-semibold text-base">{actionTitle(action)}</span>
        <StatusChip status={action.status} />
      </p>
      <p className="mb-2 break-words">{action.message}</p>
      {action.kind === "stack_capture" ? (
        <Software action={action} owner={owner} />
      ) : (
        <Machine action={action} unit={unit} />
      )}
    </section>
  );
}

/** H1, H2, deadlocks: the code is at fault, and its owner is called; no machine goes. */
function Software({
  action,
  owner,
}: {
  readonly action: RepairDetail;
  readonly owner: string | undefined;
}) {
  return (
    <Facts
      entries={[
        ["why no swap", "the fault is in software: another machine would run the same code"],
        ...(owner === undefined ? [] : [["owner", owner] as const]),
        [
          "stacks",
          isUnderWay(action)
            ? "asked for; they come with the logs from the nodes"
            : `${reasonText(action.reason)}; see the logs from the nodes`,
        ],
      ]}
    />
  );
}

function Machine({
  action,
  unit,
}: {
  readonly action: RepairDetail;
  readonly unit: Schemas["CostRead"]["unit"];
}) {
  return (
    <>
      <Places action={action} />
      <Facts entries={proposalFacts(action, unit)} />
      <Checks checks={action.checks} />
      <Decide action={action} />
    </>
  );
}

function proposalFacts(
  action: RepairDetail,
  unit: Schemas["CostRead"]["unit"],
): readonly (readonly [string, ReactNode])[] {
  const { preconditions: now } = action;
  const entries: (readonly [string, ReactNode])[] = [["mode", modeText(action.mode)]];
  if (action.status === "proposed") {
    entries.push(["deadline", <Deadline key="deadline" at={action.expires_at} />]);
  }
  if (!isOver(action) && action.kind !== "fallback") {
    entries.push(
      ["blast radius", `${now.blast_ranks} of ${now.members_known} ranks are replaced`],
      ["expected cost", expectedCost(now, action.kind, unit)],
      [
        "run again",
        now.replayed_steps_at_most > 0
          ? `at most ${stepsText(now.replayed_steps_at_most)}`
          : "no step",
      ],
    );
  }
  if (action.requested_by !== "system") entries.push(["asked for by", action.requested_by]);
  if (action.decided_by !== "") {
    const verb = action.status === "rejected" ? "rejected by" : "approved by";
    entries.push([verb, action.note ? `${action.decided_by}: ${action.note}` : action.decided_by]);
  }
  if (isOver(action)) entries.push(["ended", reasonText(action.reason)]);
  return entries;
}

function Deadline({ at }: { readonly at: string }) {
  const left = (Date.parse(at) - useNow()) / 1000;
  return (
    <time dateTime={at} title={new Date(at).toString()}>
      {left > 0 ? `expires in ${formatLeft(left)}` : "has passed"}
    </time>
  );
}

/** Who leaves and who joins. Node first: it is what people look for, the member's name is for programs. */
function Places({ action }: { readonly action: RepairDetail }) {
  const { places } = action;
  if (places.length === 0) return null;
  const more = action.leavers.length - places.length;
  return (
    <ul aria-label="Who leaves and who joins" className="mb-3 grid gap-1.5">
      {places.map((place) => (
        <li
          key={place.rank}
          className="grid gap-x-3 rounded border border-line px-2 py-1.5 sm:grid-cols-[max-content_1fr_1fr]"
        >
          <span className="font-semibold">rank {place.rank}</span>
          <Who word="leaves" node={place.leaver_node} member={place.leaver} none="not known yet" />
          <Who word="joins" node={place.joiner_node} member={place.joiner} none="no standby yet" />
        </li>
      ))}
      {more > 0 && <li className="text-soft">and {more} more</li>}
    </ul>
  );
}

interface WhoProps {
  readonly word: string;
  readonly node: string | null;
  readonly member: string | null;
  readonly none: string;
}

function Who({ word, node, member, none }: WhoProps) {
  return (
    <span className="min-w-0">
      <span className="text-soft">{word} </span>
      {member === null ? (
        <span className="text-slow">{none}</span>
      ) : (
        <>
          <span className="break-all font-medium">{node ?? "node unknown"}</span>
          <span className="block break-all font-mono text-soft text-xs">{member}</span>
        </>
      )}
    </span>
  );
}

function Checks({ checks }: { readonly checks: readonly Schemas["CheckRead"][] }) {
  if (checks.length === 0) return null;
  return (
    <>
      <SmallHeading>Preconditions</SmallHeading>
      <ul aria-label="Preconditions" className="grid gap-1">
        {checks.map((check) => (
          <li key={check.name} className="flex gap-2">
            <CheckMark state={check.state} />
            <span className="min-w-0 break-words">
              {checkTitle(check.name)}
              {check.detail && <span className="text-soft">: {check.detail}</span>}
              {check.reason && (
                <code className="ml-2 font-mono text-soft text-xs">{check.reason}</code>
              )}
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}
