import { QueryClient } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { followEvents, RETRY_MS, type StreamState } from "../src/lib/events";

/** What the browser does, told by hand. */
class FakeSource extends EventTarget {
  static readonly CLOSED = 2;
  static made: FakeSource[] = [];
  readyState = 0;
  onopen: () => void = () => undefined;
  onerror: () => void = () => undefined;

  constructor(readonly url: string) {
    super();
    FakeSource.made.push(this);
  }

  close(): void {
    this.readyState = FakeSource.CLOSED;
  }

  fail(readyState: number): void {
    this.readyState = readyState;
    this.onerror();
  }
}

function newest(): FakeSource {
  const source = FakeSource.made.at(-1);
  if (!source) throw new Error("no stream was opened");
  return source;
}

describe("the event stream", () => {
  const client = new QueryClient();
  const stale = vi.spyOn(client, "invalidateQueries");
  let states: StreamState[];
  let stop: () => void;

  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal("EventSource", FakeSource);
    FakeSource.made = [];
    stale.mockClear();
    states = [];
    stop = followEvents(client, "/v1/events", (state) => states.push(state));
  });
  afterEach(() => {
    stop();
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  it("is left to the browser while the browser tries again", () => {
    newest().onopen();
    newest().fail(0);
    vi.advanceTimersByTime(10 * RETRY_MS);
    expect(states).toEqual(["live", "connecting"]);
    expect(FakeSource.made).toHaveLength(1);
  });

  it("is begun anew where the server refused it, and everything is read again", () => {
    newest().fail(FakeSource.CLOSED);
    expect(stale).toHaveBeenCalledExactlyOnceWith({ queryKey: ["me"] });
    vi.advanceTimersByTime(RETRY_MS);
    expect(FakeSource.made).toHaveLength(2);
    newest().onopen();
    expect(states).toEqual(["lost", "live"]);
    expect(stale).toHaveBeenLastCalledWith();
  });

  it("makes the queries of an event stale", () => {
    newest().dispatchEvent(new Event("incident.opened"));
    expect(stale.mock.calls).toEqual([[{ queryKey: ["incidents"] }], [{ queryKey: ["jobs"] }]]);
  });

  it("does not come back after its page has gone", () => {
    newest().fail(FakeSource.CLOSED);
    stop();
    vi.advanceTimersByTime(10 * RETRY_MS);
    expect(FakeSource.made).toHaveLength(1);
  });
});
