import { isOver, type Recovery, type RepairAction, useRecoveries } from "../api/repair";
import { ErrorNotice } from "../components/error-notice";
import { formatClock } from "../lib/time";
import { SmallHeading, StepMark } from "./marks";
import { phaseRows, platformRows, refusals, type StepRow } from "./phases";
import { formatBytes, formatDuration, type Outcome, outcomeOf, reasonText } from "./words";

const REFUSALS_SHOWN = 8;

/** What has come of an action: its phases as its members measured them, and how it ended. */
export function RecoveryProgress({ action }: { readonly action: RepairAction }) {
  const recoveries = useRecoveries(action);
  const found = recoveries.data ?? [];
  const outcome = outcomeOf(action, found);
  return (
    <section aria-label="Repair" className="mb-4">
      {recoveries.error && <ErrorNotice error={recoveries.error} />}
      <Ending outcome={outcome} />
      {action.kind !== "stack_capture" && (
        <>
          <Steps label="Decision" rows={platformRows(action, found)} />
          {recoveries.isPending && <p className="text-soft">Loading the phases…</p>}
          {found.map((recovery) => (
            <Generation
              key={recovery.id}
              recovery={recovery}
              joiners={action.joiners}
              planned={action.kind === "planned_swap"}
              live={!isOver(action)}
            />
          ))}
        </>
      )}
    </section>
  );
}

const TONES: Readonly<Record<Outcome["tone"], string>> = {
  good: "border-good bg-good-wash text-good",
  hang: "border-hang bg-hang-wash text-hang",
  slow: "border-slow bg-slow-wash text-slow",
  soft: "border-line bg-raised text-ink",
};

function Ending({ outcome }: { readonly outcome: Outcome }) {
  return (
    <p role="status" className={`mb-3 rounded border px-3 py-2 ${TONES[outcome.tone]}`}>
      {outcome.text}
    </p>
  );
}

interface GenerationProps {
  readonly recovery: Recovery;
  readonly joiners: readonly string[];
  readonly planned: boolean;
  readonly live: boolean;
}

function Generation({ recovery, joiners, planned, live }: GenerationProps) {
  const failed = refusals(recovery);
  const state =
    recovery.ended_at === null && live
      ? recovery.state
      : `${recovery.state}, ${reasonText(recovery.reason)}`;
  const again = recovery.attempt_no > 0 ? `, rendezvous ${recovery.attempt_no + 1}` : "";
  return (
    <>
      <SmallHeading>
        Generation {recovery.generation}
        <span className="normal-case tracking-normal">
          {" "}
          · {state}
          {again}
        </span>
      </SmallHeading>
      <Steps
        label={`Phases of generation ${recovery.generation}`}
        rows={phaseRows(recovery, joiners, planned, formatBytes)}
      />
      {failed.length > 0 && (
        <ul aria-label="What members could not do" className="mt-1 grid gap-1">
          {failed.slice(-REFUSALS_SHOWN).map((row) => (
            <li key={`${row.member} ${row.at} ${row.kind}`} className="break-words text-hang">
              rank {row.rank} {row.outcome ?? row.kind}: {row.message || "no reason given"}
            </li>
          ))}
          {failed.length > REFUSALS_SHOWN && (
            <li className="text-soft">and {failed.length - REFUSALS_SHOWN} before these</li>
          )}
        </ul>
      )}
    </>
  );
}

function Steps({ label, rows }: { readonly label: string; readonly rows: readonly StepRow[] }) {
  return (
    <ol aria-label={label} className="grid">
      {rows.map((row) => (
        <li
          key={row.key}
          className="flex items-baseline gap-2 border-line border-b py-1 last:border-0"
        >
          <StepMark state={row.state} />
          <span className="min-w-0 flex-1 break-words">
            {row.title}
            {row.detail && (
              <span className="text-soft max-sm:block">
                <span className="max-sm:hidden"> · </span>
                {row.detail}
              </span>
            )}
          </span>
          <span className="flex-none text-right">
            {row.durationMs !== null && formatDuration(row.durationMs)}
          </span>
          <span className="w-16 flex-none text-right text-soft text-xs">
            {row.at !== null && <time dateTime={row.at}>{formatClock(row.at)}</time>}
          </span>
        </li>
      ))}
    </ol>
  );
}
