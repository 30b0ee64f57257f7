import { describe, expect, it } from "vitest";
import { formatAmount, formatEttr } from "../src/pages/economics";

describe("the economics of a job", () => {
  it("shows hours of small and large jobs", () => {
    expect([0, 0.04, 3.44, 99.6, 117_771.2].map(formatAmount)).toEqual([
      "0",
      "0",
      "3.4",
      "100",
      "117,771",
    ]);
  });

  it("shows useful time to the second digit", () => {
    expect([1, 0.98544].map(formatEttr)).toEqual(["100.00 %", "98.54 %"]);
  });
});
