import { useEffect, useState } from "react";

/** `4 s`, `3 min`, `2 h`, `5 d`: one unit is enough for an age. */
export function formatAge(seconds: number): string {
  const age = Math.max(0, seconds);
  if (age < 100) return `${Math.round(age)} s`;
  if (age < 5400) return `${Math.round(age / 60)} min`;
  if (age < 48 * 3600) return `${Math.round(age / 3600)} h`;
  return `${Math.round(age / 86400)} d`;
}

/** Local wall time with seconds, without the date. */
export function formatClock(iso: string): string {
  return new Date(iso).toLocaleTimeString(undefined, { hour12: false });
}

/** The current time in ms, renewed every second while mounted. */
export function useNow(): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

export function Age({ at }: { readonly at: string }) {
  const now = useNow();
  return (
    <time dateTime={at} title={new Date(at).toString()}>
      {formatAge((now - Date.parse(at)) / 1000)} ago
    </time>
  );
}
