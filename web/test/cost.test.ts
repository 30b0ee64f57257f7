import { describe, expect, it } from "vitest";
import type { Schemas } from "../src/api/client";
import { formatHours, lostText, regainText } from "../src/pages/incident/cost";

const COST: Schemas["CostRead"] = {
  unit: "gpu",
  ranks_count: 8,
  hours: 2,
  at_most: false,
  unknown_s: 0,
  as_of: "2026-01-02T03:04:05Z",
  hours_per_hour: 8,
  reason: "all ranks of the job stand still",
  step_s: null,
  usual_step_s: null,
  what_if: [],
};
const AS_OF = Date.parse(COST.as_of);

describe("lost so far", () => {
  it("grows between two answers and stops with the incident", () => {
    expect(lostText(COST, AS_OF)).toBe("2.0 GPU hours");
    expect(lostText(COST, AS_OF + 1_800_000)).toBe("6.0 GPU hours");
    expect(lostText({ ...COST, hours_per_hour: 0 }, AS_OF + 1_800_000)).toBe("2.0 GPU hours");
  });

  it("says what is a bound and what is not known", () => {
    expect(lostText({ ...COST, at_most: true, unknown_s: 60 }, AS_OF)).toBe(
      "at most 2.0 GPU hours, and 60 s slow by an unknown amount",
    );
    expect(lostText({ ...COST, hours: null, reason: "the job marks no steps" }, AS_OF)).toBe(
      "not known: the job marks no steps",
    );
  });

  it("has a size that people read", () => {
    expect(formatHours(0.4, "gpu")).toBe("24 GPU minutes");
    expect(formatHours(1 / 60, "rank")).toBe("1 rank minute");
    expect(formatHours(0.004, "rank")).toBe("less than 1 rank minute");
    expect(formatHours(0.998, "gpu")).toBe("1.0 GPU hours");
    expect(formatHours(1204.4, "rank")).toBe("1,204 rank hours");
  });
});

it("a what-if names its inputs, or those that are missing", () => {
  const regain = { root: {} as never, ratio: 0.123, at_most: true, reason: "T against Tbase" };
  expect(regainText(regain)).toBe("at most 12.3 % more steps (T against Tbase)");
  expect(regainText({ ...regain, ratio: null })).toBe("not known: T against Tbase");
});
