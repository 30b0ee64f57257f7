import { expect, it } from "vitest";
import type { Schemas } from "../src/api/client";
import { nodeText, versionText } from "../src/pages/incident/memory";

const NODE: Schemas["NodeFindingRead"] = {
  node: "n0",
  gpu: 3,
  reason: "repeat_offender",
  incidents_count: 4,
  jobs_count: 3,
  programs_count: 2,
  chance: 0.0001,
  past: [],
};
const VERSION: Schemas["VersionFindingRead"] = {
  reason: "same_version",
  versions: "torch 2.13",
  jobs_count: 11,
  programs_count: 4,
  nodes_count: 9,
  jobs_of_version: 30,
  other_jobs_count: 0,
  jobs_of_others: 40,
  root: { kind: "version", name: "torch 2.13" },
};

it("a node's history says what it is worth", () => {
  expect(nodeText(NODE, 30)).toBe(" GPU 3: repeat offender, in 3 other jobs within 30 days");
  expect(nodeText({ ...NODE, gpu: null, reason: "few_jobs", jobs_count: 1 }, 30)).toBe(
    ": too few jobs to call it a habit, in 1 other job within 30 days",
  );
  expect(nodeText({ ...NODE, gpu: null, reason: "no_offence", jobs_count: 0 }, 30)).toBe(
    ": only software incidents, which say nothing about the machine",
  );
});

it("a version is named only where the symptom follows it", () => {
  expect(versionText(VERSION, 7)).toContain("points to the version and not to a node");
  expect(versionText({ ...VERSION, reason: "not_compared" }, 7)).toContain("may be what else");
  expect(versionText({ ...VERSION, reason: "few_nodes", root: null }, 7)).toBeNull();
});
