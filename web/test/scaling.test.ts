import { describe, expect, it } from "vitest";
import type { Schemas } from "../src/api/client";
import { habitText } from "../src/pages/nodes";
import { formatStep, layoutBars, windowText } from "../src/pages/scaling";

const WINDOW: Schemas["ScalingWindowRead"] = {
  id: "scal_1",
  first_step: 60,
  last_step: 119,
  iterations: 60,
  ranks: 8,
  ranks_expected: 8,
  step_s: 0.85,
  cv: 0.02,
  cvs: [0.02],
  findings: [],
  refused: "",
  judged_at: "2026-01-02T03:04:05Z",
};
const FOUND: Schemas["ScalingFindingRead"] = {
  mode: "locality_variance",
  statement: "8 ranks that share a node are always slower",
  cost_share: 0.0654,
  ranks: [8, 9],
  place: "node",
  inputs: [],
};

describe("a window", () => {
  it("says what it showed, or why it showed nothing", () => {
    expect(windowText(WINDOW)).toBe("nothing");
    expect(windowText({ ...WINDOW, findings: [FOUND] })).toBe("slow place (6.5 %)");
    expect(windowText({ ...WINDOW, refused: "12 iterations, 40 are needed" })).toBe(
      "not judged: 12 iterations, 40 are needed",
    );
  });

  it("has a duration that people read", () => {
    expect([0.0251, 0.85, 1.254, 34.04].map(formatStep)).toEqual([
      "25 ms",
      "850 ms",
      "1.25 s",
      "34.0 s",
    ]);
  });
});

describe("the plot", () => {
  it("goes from old to new, leaves out windows without a figure, and never hides a bar", () => {
    const { bars, limitY } = layoutBars([
      { ...WINDOW, id: "new", cv: 0.4 },
      { ...WINDOW, id: "none", cv: null },
      { ...WINDOW, id: "old", cv: 0 },
    ]);
    expect(bars.map((bar) => [bar.key, bar.x, bar.height])).toEqual([
      ["old", 0, 1],
      ["new", 11, 64],
    ]);
    expect(limitY).toBeCloseTo(64 * 0.8);
  });
});

it("a node's counts are put in words", () => {
  const node = {
    node: "n0",
    incidents_count: 4,
    offences_count: 3,
    jobs_count: 3,
    programs_count: 2,
    last_opened_at: WINDOW.judged_at,
  };
  expect(habitText(node)).toBe("several jobs and programs");
  expect(habitText({ ...node, programs_count: 1 })).toBe("one program: rather its code");
  expect(habitText({ ...node, jobs_count: 1 })).toBe("one job");
  expect(habitText({ ...node, offences_count: 0 })).toBe("only software");
});
