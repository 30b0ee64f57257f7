import { describe, expect, it } from "vitest";
import type { Schemas } from "../src/api/client";
import { formatBytes, stateWords } from "../src/pages/incident/shipped";

type Shipped = Schemas["ShippedRead"];

function shipped(state: Shipped["state"], ...states: Schemas["ShipmentRead"]["state"][]): Shipped {
  const nodes = states.map((each, index) => ({
    id: `cmd_${index}`,
    node: `n${index}`,
    reason: "root" as const,
    state: each,
    message: "",
    asked_at: "2026-11-30T00:00:00Z",
    deadline_at: "2026-11-30T00:01:30Z",
    collected_at: null,
    received_at: null,
    bytes_count: 0,
    sha256: "",
  }));
  return { state, says: "", nodes };
}

describe("logs from the nodes", () => {
  it("says when nothing may be killed yet", () => {
    expect(stateWords(shipped("pending", "pending"))).toContain("kill nothing yet");
    expect(stateWords(shipped("complete", "shipped", "failed"))).toContain("in the bundle");
    expect(stateWords(shipped("complete", "dropped"))).toContain("no logs are kept");
    expect(stateWords(shipped("expired", "expired"))).toContain("not answer in time");
  });

  it("shows sizes as people read them", () => {
    expect([0, 999, 81_250, 3_400_000].map(formatBytes)).toEqual([
      "0 B",
      "999 B",
      "81 kB",
      "3.4 MB",
    ]);
  });
});
