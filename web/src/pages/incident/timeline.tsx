import { type FormEvent, useState } from "react";
import type { Incident, Schemas } from "../../api/client";
import { useAddNote } from "../../api/queries";
import { Button } from "../../components/button";
import { ErrorNotice } from "../../components/error-notice";
import { formatClock } from "../../lib/time";
import { useIsRepaired } from "../../repair/of-incident";

type Entry = Schemas["TimelineEntryRead"];
type Filter = "all" | "machine" | "human";

export function filterEntries(entries: readonly Entry[], filter: Filter): readonly Entry[] {
  if (filter === "all") return entries;
  return entries.filter((entry) => (entry.actor_type === "system") === (filter === "machine"));
}

/** What an open incident says of its job: a slow one does make progress, and so does a repaired one. */
export function stateText(verdict: Incident["verdict_class"], isRepaired = false): string {
  if (isRepaired) return "The incident resolves by itself once progress is seen.";
  return verdict.startsWith("S")
    ? "The job is still slow."
    : "The job has not made progress since.";
}

export function Timeline({ incident }: { readonly incident: Incident }) {
  const [filter, setFilter] = useState<Filter>("all");
  const { did_it_happen: outcome } = incident;
  const isRepaired = useIsRepaired(incident.id);
  return (
    <>
      <p className="mb-3">
        {incident.status === "resolved"
          ? `Resolved by ${incident.resolved_by ?? "unknown"}: ${incident.resolution || "no reason given"}.`
          : stateText(incident.verdict_class, isRepaired)}
      </p>
      <fieldset className="mb-2 flex gap-3 text-soft text-xs">
        <legend className="sr-only">Show entries by</legend>
        {(["all", "machine", "human"] as const).map((name) => (
          <label key={name} className="flex items-center gap-1">
            <input
              type="radio"
              name="timeline"
              checked={filter === name}
              onChange={() => setFilter(name)}
            />
            {name}
          </label>
        ))}
      </fieldset>
      <ol className="grid gap-2 border-line border-l pl-4">
        {filterEntries(outcome.timeline, filter).map((entry) => (
          <li key={entry.id}>
            <span className="text-soft text-xs">
              <time dateTime={entry.at} title={new Date(entry.at).toString()}>
                {formatClock(entry.at)}
              </time>{" "}
              · {entry.actor}
              {entry.source !== entry.actor && ` · ${entry.source}`}
            </span>
            <span className="block break-words">{entry.message}</span>
          </li>
        ))}
      </ol>
      <Deliveries deliveries={outcome.deliveries} />
      <NoteForm incidentId={incident.id} />
    </>
  );
}

function Deliveries({ deliveries }: { readonly deliveries: Schemas["DidItHappen"]["deliveries"] }) {
  if (deliveries.length === 0) return null;
  return (
    <>
      <h3 className="mt-4 mb-1 text-soft text-xs uppercase tracking-wider">Told</h3>
      <ul className="grid gap-1">
        {deliveries.map((delivery) => (
          <li key={delivery.id}>
            {delivery.channel} · {delivery.event_type} · {delivery.status}
            {delivery.attempts_count > 1 && ` after ${delivery.attempts_count} attempts`}
          </li>
        ))}
      </ul>
    </>
  );
}

function NoteForm({ incidentId }: { readonly incidentId: string }) {
  const [text, setText] = useState("");
  const note = useAddNote(incidentId);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    note.mutate(text.trim(), { onSuccess: () => setText("") });
  };
  return (
    <form onSubmit={submit} className="mt-4">
      {note.error && <ErrorNotice error={note.error} />}
      <label className="block">
        <span className="mb-1 block text-soft text-xs">Note for those who read this later</span>
        <textarea
          value={text}
          maxLength={4000}
          rows={2}
          onChange={(event) => setText(event.target.value)}
          className="mb-2 w-full rounded border border-line-strong bg-canvas px-2 py-1"
        />
      </label>
      <Button type="submit" disabled={text.trim() === "" || note.isPending}>
        Add note
      </Button>
    </form>
  );
}
