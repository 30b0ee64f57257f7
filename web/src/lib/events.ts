import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";

export type StreamState = "connecting" | "live" | "lost";

/** The browser reconnects a broken stream by itself, but gives up after an answer that is not 200. */
export const RETRY_MS = 5_000;

/** Types that the server sends as named events; each makes the matching queries stale. */
export const EVENT_KEYS: Readonly<Record<string, readonly string[]>> = {
  "incident.opened": ["incidents", "jobs"],
  "incident.updated": ["incidents", "jobs"],
  "incident.acknowledged": ["incidents"],
  "incident.resolved": ["incidents", "jobs"],
  "incident.reopened": ["incidents", "jobs"],
  "incident.noted": ["incidents"],
  "incident.evidence": ["incidents"],
  "job.registered": ["jobs"],
  "job.attempt_started": ["jobs"],
  "job.ended": ["jobs"],
  "repair.changed": ["repair", "incidents"],
  reset: ["incidents", "jobs", "repair"],
};

/**
 * Follow the stream at `url` until the returned function is called. Events carry no data that is
 * shown, they only make queries stale; so does a stream that was begun anew, which has a gap.
 */
export function followEvents(
  client: QueryClient,
  url: string,
  onState: (state: StreamState) => void,
): () => void {
  let source: EventSource | undefined;
  let retry: ReturnType<typeof setTimeout> | undefined;

  const connect = (isFirst: boolean) => {
    const opened = new EventSource(url);
    source = opened;
    opened.onopen = () => {
      onState("live");
      if (!isFirst) void client.invalidateQueries();
    };
    opened.onerror = () => {
      if (opened.readyState !== EventSource.CLOSED) return onState("connecting");
      onState("lost");
      // Perhaps the session has ended: then the shell asks for a token and this stream ends.
      void client.invalidateQueries({ queryKey: ["me"] });
      retry = setTimeout(() => connect(false), RETRY_MS);
    };
    for (const [type, keys] of Object.entries(EVENT_KEYS)) {
      opened.addEventListener(type, () => {
        for (const key of keys) void client.invalidateQueries({ queryKey: [key] });
      });
    }
  };

  connect(true);
  return () => {
    clearTimeout(retry);
    source?.close();
  };
}

/** One event stream for the page. */
export function useEventStream(url = "/v1/events"): StreamState {
  const client = useQueryClient();
  const [state, setState] = useState<StreamState>("connecting");
  useEffect(() => followEvents(client, url, setState), [client, url]);
  return state;
}
