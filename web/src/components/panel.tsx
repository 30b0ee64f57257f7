import { type ReactNode, useId } from "react";

interface PanelProps {
  readonly title: string;
  readonly aside?: ReactNode;
  readonly children: ReactNode;
}

export function Panel({ title, aside, children }: PanelProps) {
  const id = useId();
  return (
    <section
      aria-labelledby={id}
      className="min-w-0 rounded-lg border border-line bg-surface shadow-xs"
    >
      <header className="flex items-baseline justify-between gap-3 border-line border-b px-4 py-2">
        <h2 id={id} className="font-semibold text-soft text-xs uppercase tracking-wider">
          {title}
        </h2>
        {aside && <div className="text-soft text-xs">{aside}</div>}
      </header>
      <div className="px-4 py-3">{children}</div>
    </section>
  );
}

export function Facts({
  entries,
}: {
  readonly entries: readonly (readonly [string, ReactNode])[];
}) {
  return (
    <dl className="grid grid-cols-[max-content_1fr] content-start gap-x-4 gap-y-1">
      {entries.map(([name, value]) => (
        <div key={name} className="contents">
          <dt className="text-soft">{name}</dt>
          <dd className="min-w-0 break-words">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Notice({ children }: { readonly children: ReactNode }) {
  return (
    <p className="rounded border border-line border-dashed px-4 py-6 text-center text-soft">
      {children}
    </p>
  );
}
