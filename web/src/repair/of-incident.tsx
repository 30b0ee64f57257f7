import type { Incident } from "../api/client";
import { isOver, type RepairAction, useIncidentActions, useRepairAction } from "../api/repair";
import { ErrorNotice } from "../components/error-notice";
import { Age } from "../lib/time";
import { StatusChip } from "./marks";
import { Proposal } from "./proposal";
import { RecoveryProgress } from "./recovery";
import { actionTitle, reasonText } from "./words";

/** The action that the page is about: what is open comes first, a capture of stacks last. */
export function mainAction(actions: readonly RepairAction[]): RepairAction | undefined {
  const machine = actions.filter((action) => action.kind !== "stack_capture");
  return machine.find((action) => !isOver(action)) ?? machine[0] ?? actions[0];
}

/** Part of "What next". */
export function NextRepair({ incident }: { readonly incident: Incident }) {
  const actions = useIncidentActions(incident.id);
  if (actions.data === undefined) {
    return actions.error ? (
      <ErrorNotice error={actions.error} />
    ) : (
      <p className="mt-3 text-soft">Looking for proposals…</p>
    );
  }
  const main = mainAction(actions.data);
  if (main === undefined) {
    return (
      <p className="mt-3 text-soft">
        Repair has proposed nothing: no machine is to blame, or no rank of the job runs under a
        supervisor.
      </p>
    );
  }
  return (
    <>
      <Proposal
        key={main.id}
        actionId={main.id}
        unit={incident.cost.unit}
        owner={incident.what_next.owner.replace("_", " ")}
      />
      <Others actions={actions.data.filter((action) => action.id !== main.id)} />
    </>
  );
}

/** Whether members have finished a step since, which the incident may not know yet. */
export function useIsRepaired(incidentId: string): boolean {
  const main = mainAction(useIncidentActions(incidentId).data ?? []);
  return main?.status === "succeeded" && main.reason === "resumed";
}

/** Part of "Did it happen". Nothing where nothing was proposed. */
export function HappenedRepair({ incident }: { readonly incident: Incident }) {
  const main = mainAction(useIncidentActions(incident.id).data ?? []);
  return main === undefined ? null : <Happened key={main.id} listed={main} />;
}

/** The action by itself is read more often than the list. */
function Happened({ listed }: { readonly listed: RepairAction }) {
  const action = useRepairAction(listed.id).data;
  return <RecoveryProgress action={action ?? listed} />;
}

function Others({ actions }: { readonly actions: readonly RepairAction[] }) {
  if (actions.length === 0) return null;
  return (
    <details className="mt-3">
      <summary className="cursor-pointer text-soft">
        {actions.length} other {actions.length === 1 ? "action" : "actions"} for this incident
      </summary>
      <ul className="mt-2 grid gap-1.5">
        {actions.map((action) => (
          <li key={action.id} className="break-words">
            {actionTitle(action)} <StatusChip status={action.status} />{" "}
            <span className="text-soft">
              {reasonText(action.reason)}, <Age at={action.created_at} />
            </span>
          </li>
        ))}
      </ul>
    </details>
  );
}
