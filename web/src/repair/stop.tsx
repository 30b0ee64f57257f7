import { type FormEvent, useId, useState } from "react";
import { isChanged, type RepairPolicy, useRepairObjection, useStop } from "../api/repair";
import { Button } from "../components/button";
import { ErrorNotice } from "../components/error-notice";

/** The rows that hold the job: of all jobs, of this one, of one cause. */
export function stopText(policies: readonly RepairPolicy[]): string {
  const on = policies.filter((row) => row.stopped);
  if (on.length === 0) return "off";
  return on
    .map((row) => {
      const whose = row.job === null ? "all jobs" : "this job";
      const cause = row.cause === null ? "" : `, cause ${row.cause.replace("_", " ")}`;
      return `on for ${whose}${cause}, by ${row.updated_by}`;
    })
    .join("; ");
}

interface StopProps {
  readonly job: string;
  /** Those that fit the job. */
  readonly policies: readonly RepairPolicy[];
}

/** The stop switch of one job. That of all jobs is shown and not touched here. */
export function StopSwitch({ job, policies }: StopProps) {
  const [isAsking, setAsking] = useState(false);
  const objection = useRepairObjection();
  const objectionId = useId();
  const own = policies.find((row) => row.job === job && row.cause === null);
  const isOn = own?.stopped ?? false;
  const text = stopText(policies);
  return (
    <div className="mt-2">
      <p className="mb-2 flex flex-wrap items-center gap-x-3 gap-y-1">
        <span className="text-soft">stop switch</span>
        <span className={text === "off" ? "" : "font-semibold text-hang"}>{text}</span>
        {!isAsking && (
          <Button
            disabled={objection !== null}
            aria-describedby={objection === null ? undefined : objectionId}
            onClick={() => setAsking(true)}
          >
            {isOn ? "Lift it for this job…" : "Stop repair of this job…"}
          </Button>
        )}
      </p>
      {objection !== null && (
        <p id={objectionId} className="text-soft">
          {objection}
        </p>
      )}
      {isAsking && (
        <StopForm
          job={job}
          isOn={isOn}
          version={own?.version ?? null}
          onClose={() => setAsking(false)}
        />
      )}
    </div>
  );
}

interface FormProps {
  readonly job: string;
  readonly isOn: boolean;
  readonly version: number | null;
  readonly onClose: () => void;
}

function StopForm({ job, isOn, version, onClose }: FormProps) {
  const [note, setNote] = useState("");
  const [seen] = useState(version);
  const stop = useStop();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    stop.mutate({ job, stopped: !isOn, note: note.trim(), version: seen }, { onSuccess: onClose });
  };
  const title = isOn ? "Lift the stop switch" : "Stop repair of this job";
  return (
    <form
      aria-label={title}
      onSubmit={submit}
      className="rounded border border-line-strong bg-raised p-3"
    >
      <p className="mb-2">
        {isOn
          ? "What waits is carried out again where its policy lets it."
          : "Nothing new is dispatched. What is under way runs to its end."}
      </p>
      {stop.error && (
        <ErrorNotice
          error={
            isChanged(stop.error)
              ? new Error(`Changed since you read it: ${stop.error.message}. Close and look again.`)
              : stop.error
          }
        />
      )}
      <label className="block">
        <span className="mb-1 block text-soft text-xs">Reason, for the audit log</span>
        <input
          value={note}
          maxLength={1000}
          onChange={(event) => setNote(event.target.value)}
          className="mb-2 w-full rounded border border-line-strong bg-canvas px-2 py-1"
        />
      </label>
      <div className="flex flex-wrap gap-2">
        <Button primary type="submit" disabled={note.trim() === "" || stop.isPending}>
          {isOn ? "Lift" : "Stop"}
        </Button>
        <Button onClick={onClose}>Back</Button>
      </div>
    </form>
  );
}
