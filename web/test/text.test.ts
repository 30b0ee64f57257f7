import { describe, expect, it, vi } from "vitest";
import type { Incident, Root } from "../src/api/client";
import { ApiError, drawRequestKey, unwrap } from "../src/api/client";
import { isTyping } from "../src/lib/keys";
import { resolveTheme } from "../src/lib/theme";
import { formatAge } from "../src/lib/time";
import {
  copySummary,
  describeRoot,
  firstRootRank,
  summaryText,
} from "../src/pages/incident/summary";
import { filterEntries, stateText } from "../src/pages/incident/timeline";

const ROOT: Root = {
  kind: "rank",
  rank: 5,
  node: "gpu-7",
  gpu: 2,
  peer_rank: null,
  name: null,
  ranks: [],
  role: "initiating",
};

describe("roots", () => {
  it("are described by what they are", () => {
    expect(describeRoot(ROOT)).toBe("rank 5 (gpu-7, GPU 2)");
    expect(describeRoot({ ...ROOT, kind: "link", peer_rank: 6, gpu: null })).toBe(
      "link 5 → 6 (gpu-7)",
    );
    expect(describeRoot({ ...ROOT, kind: "group", ranks: [4, 5], node: null, gpu: null })).toBe(
      "one of ranks 4, 5",
    );
    expect(describeRoot({ ...ROOT, kind: "version", rank: null, name: "NCCL 2.28.9" })).toBe(
      "NCCL 2.28.9",
    );
  });

  it("give the first rank to look at", () => {
    expect(firstRootRank([ROOT])).toBe(5);
    expect(firstRootRank([{ ...ROOT, rank: null, ranks: [7, 8] }])).toBe(7);
    expect(firstRootRank([])).toBe(0);
  });
});

const INCIDENT = {
  label: "INC-3",
  verdict_class: "H1",
  summary: "rank 5 never entered",
  job: "j",
  job_name: "llama",
  owner: "user_code",
  why: { confidence: 0.97 },
} as Incident;

it("summary for a chat holds label, cause, owner and link", () => {
  expect(summaryText(INCIDENT, "http://x/incidents/1")).toBe(
    "INC-3 H1 rank 5 never entered\njob llama, confidence 97 %, owner user_code\nhttp://x/incidents/1",
  );
});

it("a slow job is not said to stand still", () => {
  expect(stateText("S1")).toBe("The job is still slow.");
  expect(stateText("H1")).toBe("The job has not made progress since.");
  expect(stateText("H1", true)).toBe("The incident resolves by itself once progress is seen.");
});

it("timeline separates people from machines", () => {
  const entry = { id: 1, at: "", kind: "", actor: "", source: "", message: "" };
  const entries = [
    { ...entry, actor_type: "system" },
    { ...entry, id: 2, actor_type: "token" },
  ];
  expect(filterEntries(entries, "machine").map((e) => e.id)).toEqual([1]);
  expect(filterEntries(entries, "human").map((e) => e.id)).toEqual([2]);
  expect(filterEntries(entries, "all")).toHaveLength(2);
});

it("ages use one unit", () => {
  expect([3, 120, 7200, 200_000, -5].map(formatAge)).toEqual(["3 s", "2 min", "2 h", "2 d", "0 s"]);
});

it("the system theme is followed until one is chosen", () => {
  expect(resolveTheme("system", true)).toBe("dark");
  expect(resolveTheme("light", true)).toBe("light");
});

it("keys in fields are text and not shortcuts", () => {
  expect(isTyping(document.createElement("textarea"))).toBe(true);
  expect(isTyping(document.createElement("div"))).toBe(false);
});

it("a problem becomes an error with the server's own words", () => {
  const response = new Response(null, { status: 403 });
  const error = { detail: "needs the scope incidents:write", code: "missing_scope" };
  expect(() => unwrap({ error, response })).toThrow(
    new ApiError(403, "missing_scope", "needs the scope incidents:write"),
  );
  expect(unwrap({ data: 1, response: new Response() })).toBe(1);
});

it("request keys are drawn and the summary copied on a page that came over plain http", async () => {
  vi.stubGlobal("crypto", { getRandomValues: crypto.getRandomValues.bind(crypto) });
  vi.stubGlobal("navigator", {});
  const copied: string[] = [];
  document.execCommand = () => copied.push(document.querySelector("textarea")?.value ?? "") > 0;
  expect(drawRequestKey()).toMatch(/^[0-9a-f]{32}$/);
  expect(drawRequestKey()).not.toBe(drawRequestKey());
  await copySummary(INCIDENT);
  vi.unstubAllGlobals();
  expect(copied).toEqual([summaryText(INCIDENT, window.location.href)]);
  expect(document.querySelector("textarea")).toBeNull();
});
