import { useEffect, useRef } from "react";
import { Button } from "./button";

const SHORTCUTS = [
  ["1", "incidents"],
  ["2", "jobs"],
  ["3", "nodes"],
  ["j / k", "next / previous row of a list"],
  ["Enter", "open the chosen row"],
  ["a", "acknowledge the incident"],
  ["c", "copy a summary of the incident"],
  ["arrow keys", "move on the rank map"],
  ["?", "this list"],
] as const;

export function KeyboardHelp({ onClose }: { readonly onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog
      ref={dialog}
      onClose={onClose}
      aria-label="Keyboard shortcuts"
      className="m-auto rounded-lg border border-line bg-surface p-5 text-ink backdrop:bg-black/50"
    >
      <h2 className="mb-3 font-semibold">Keyboard</h2>
      <dl className="mb-4 grid grid-cols-[max-content_1fr] gap-x-6 gap-y-1">
        {SHORTCUTS.map(([key, meaning]) => (
          <div key={key} className="contents">
            <dt>
              <kbd className="rounded border border-line bg-raised px-1.5 font-mono text-xs">
                {key}
              </kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <Button onClick={() => dialog.current?.close()}>Close</Button>
    </dialog>
  );
}
