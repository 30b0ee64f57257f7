import type { Schemas } from "../../api/client";
import { Facts } from "../../components/panel";

const ACTIONS: Readonly<Record<string, string>> = {
  none: "Nothing to do",
  collect: "Collect more evidence before anybody kills the job",
  wait: "Wait: it is expected to go on by itself",
  fix_code: "Fix the training code",
  fix_configuration: "Fix the configuration",
  restart_process: "Restart the process",
  reset_gpu: "Reset the GPU",
  replace_node: "Replace the node",
  network_ticket: "Open a ticket with the network team",
};

export function WhatNext({ next }: { readonly next: Schemas["WhatNext"] }) {
  const { action } = next;
  return (
    <>
      <p className="mb-2 font-semibold text-base">
        {ACTIONS[action.kind] ?? action.kind}
        {action.target && `: ${action.target}`}
      </p>
      {action.reason && <p className="mb-3">{action.reason}</p>}
      <Facts entries={[["whom to call", next.owner.replace("_", " ")]]} />
    </>
  );
}
