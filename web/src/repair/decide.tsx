import { type FormEvent, useEffect, useId, useRef, useState } from "react";
import { drawRequestKey } from "../api/client";
import {
  isChanged,
  isOver,
  type RepairDetail,
  useDecision,
  useRepairObjection,
  type Verb,
} from "../api/repair";
import { Button } from "../components/button";
import { ErrorNotice } from "../components/error-notice";
import { useNow } from "../lib/time";
import { actionTitle, changeText, warnings } from "./words";

const WORDS: Readonly<Record<Verb, string>> = {
  approvals: "Approve",
  rejections: "Reject",
  cancellations: "Cancel action",
};

/** What can still be decided: a proposal is approved or rejected, what is approved or prepared cancelled. */
export function verbsOf(action: RepairDetail): readonly Verb[] {
  if (action.cancel_requested || isOver(action)) return [];
  if (action.status === "proposed") return ["approvals", "rejections"];
  if (action.status === "approved") return ["cancellations"];
  return action.kind === "planned_swap" && action.reason === "prepared" ? ["cancellations"] : [];
}

/** Why nobody may approve it, whoever asks. */
function approvalObjection(action: RepairDetail, nowMs: number): string | null {
  if (action.status !== "proposed") return null;
  if (Date.parse(action.expires_at) <= nowMs)
    return "It has expired: nothing can be decided any more.";
  if (action.mode !== "observe") return null;
  return "Approving needs another mode: the policy for this cause only observes.";
}

interface Opened {
  readonly verb: Verb;
  /** As it was when the form was opened: the decision is about this and nothing newer. */
  readonly seen: RepairDetail;
  readonly requestKey: string;
}

export function Decide({ action }: { readonly action: RepairDetail }) {
  const [opened, setOpened] = useState<Opened | null>(null);
  const objectionId = useId();
  const scopeObjection = useRepairObjection();
  const observed = approvalObjection(action, useNow());
  const verbs = verbsOf(action);
  const objection = scopeObjection ?? (verbs.includes("approvals") ? observed : null);
  const open = (verb: Verb) => setOpened({ verb, seen: action, requestKey: drawRequestKey() });

  if (opened !== null) {
    return (
      <DecisionForm
        key={opened.requestKey}
        opened={opened}
        action={action}
        onAgain={() => open(opened.verb)}
        onClose={() => setOpened(null)}
      />
    );
  }
  if (action.cancel_requested && !isOver(action)) {
    return <p className="mt-3 text-slow">A cancellation was asked for.</p>;
  }
  if (verbs.length === 0) return null;
  return (
    <div className="mt-3">
      <div className="flex flex-wrap gap-2">
        {verbs.map((verb) => (
          <Button
            key={verb}
            primary={verb === "approvals"}
            disabled={scopeObjection !== null || (verb === "approvals" && observed !== null)}
            aria-describedby={objection === null ? undefined : objectionId}
            onClick={() => open(verb)}
          >
            {WORDS[verb]}…
          </Button>
        ))}
      </div>
      {objection !== null && (
        <p id={objectionId} className="mt-2 text-soft">
          {objection}
        </p>
      )}
    </div>
  );
}

interface FormProps {
  readonly opened: Opened;
  readonly action: RepairDetail;
  readonly onAgain: () => void;
  readonly onClose: () => void;
}

/** Repeats the target and asks for a reason. What has changed since it was read cannot be decided here. */
function DecisionForm({ opened, action, onAgain, onClose }: FormProps) {
  const { verb, seen, requestKey } = opened;
  const [note, setNote] = useState("");
  const decision = useDecision();
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  const change = decision.isPending || decision.isSuccess ? null : changeText(seen, action);
  const stale = change ?? (isChanged(decision.error) ? (decision.error?.message ?? "") : null);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    decision.mutate({ verb, seen, note: note.trim(), requestKey }, { onSuccess: onClose });
  };
  return (
    <form
      aria-label={WORDS[verb]}
      onSubmit={submit}
      className="mt-3 rounded border border-line-strong bg-raised p-3"
    >
      <p className="mb-1 font-semibold">
        {WORDS[verb]}: {actionTitle(seen)}
      </p>
      {verb === "approvals" && <Target seen={seen} />}
      {verb === "approvals" && <Warnings action={action} />}
      {stale !== null ? (
        <Changed text={stale} />
      ) : (
        decision.error && <ErrorNotice error={decision.error} />
      )}
      <label className="block">
        <span className="mb-1 block text-soft text-xs">Reason, for the audit log</span>
        <textarea
          ref={area}
          value={note}
          maxLength={1000}
          rows={2}
          onChange={(event) => setNote(event.target.value)}
          className="mb-2 w-full rounded border border-line-strong bg-canvas px-2 py-1"
        />
      </label>
      <div className="flex flex-wrap gap-2">
        {stale === null ? (
          <Button primary type="submit" disabled={note.trim() === "" || decision.isPending}>
            {WORDS[verb]}
          </Button>
        ) : (
          verbsOf(action).includes(verb) && <Button onClick={onAgain}>Read it again</Button>
        )}
        <Button onClick={onClose}>Back</Button>
      </div>
    </form>
  );
}

function Target({ seen }: { readonly seen: RepairDetail }) {
  if (seen.places.length === 0) return null;
  return (
    <ul className="mb-2">
      {seen.places.map((place) => (
        <li key={place.rank} className="break-words">
          rank {place.rank}: {place.leaver_node ?? "unknown node"} leaves,{" "}
          {place.joiner === null
            ? "no standby is chosen yet"
            : `${place.joiner_node ?? place.joiner} joins`}
        </li>
      ))}
    </ul>
  );
}

function Warnings({ action }: { readonly action: RepairDetail }) {
  return warnings(action).map((text) => (
    <p key={text} className="mb-2 rounded border border-slow bg-slow-wash px-2 py-1 text-slow">
      {text}
    </p>
  ));
}

function Changed({ text }: { readonly text: string }) {
  return (
    <p role="alert" className="mb-2 rounded border border-hang bg-hang-wash px-3 py-2 text-hang">
      <strong className="font-semibold">Changed since you read it:</strong> {text}. Nothing was
      decided.
    </p>
  );
}
