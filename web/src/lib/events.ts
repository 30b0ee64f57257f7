import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";

export type StreamState = "connecting" | "live" | "lost";

/** Types that the server sends as named events; each makes the matching queries stale. */
export const EVENT_KEYS: Readonly<Record<string, readonly string[]>> = {
  "incident.opened": ["incidents", "jobs"],
  "incident.updated": ["incidents", "jobs"],
  "incident.acknowledged": ["incidents"],
  "incident.resolved": ["incidents", "jobs"],
  "incident.reopened": ["incidents", "jobs"],
  "incident.noted": ["incidents"],
  "job.recorded": ["jobs"],
  "job.registered": ["jobs"],
  "job.attempt_started": ["jobs"],
  "job.ended": ["jobs"],
  reset: ["incidents", "jobs"],
};

/**
 * One event stream for the page. The browser reconnects with `Last-Event-ID` by itself; events carry
 * no data that is shown, they only make queries stale.
 */
export function useEventStream(url = "/v1/events"): StreamState {
  const client = useQueryClient();
  const [state, setState] = useState<StreamState>("connecting");
  useEffect(() => {
    const source = new EventSource(url);
    source.onopen = () => setState("live");
    source.onerror = () =>
      setState(source.readyState === EventSource.CLOSED ? "lost" : "connecting");
    const listeners = Object.entries(EVENT_KEYS).map(([type, keys]) => {
      const listen = () => {
        for (const key of keys) void client.invalidateQueries({ queryKey: [key] });
      };
      source.addEventListener(type, listen);
      return () => source.removeEventListener(type, listen);
    });
    return () => {
      for (const remove of listeners) remove();
      source.close();
    };
  }, [client, url]);
  return state;
}
