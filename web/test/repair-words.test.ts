import { describe, expect, it } from "vitest";
import type { RepairMember, RepairPolicy } from "../src/api/repair";
import { expectedCost } from "../src/repair/cost";
import { verbsOf } from "../src/repair/decide";
import { mainAction } from "../src/repair/of-incident";
import { fittingPolicies, standbysText } from "../src/repair/of-job";
import { phaseRows, platformRows, refusals } from "../src/repair/phases";
import { stopText } from "../src/repair/stop";
import {
  actionTitle,
  changeText,
  formatBytes,
  formatDuration,
  formatLeft,
  outcomeOf,
  warnings,
} from "../src/repair/words";
import { ACTION, DETAIL, phase, RECOVERY, SUCCEEDED } from "./repair-fixtures";

describe("what would be done", () => {
  it("is an order that names its ranks", () => {
    expect(actionTitle(ACTION)).toBe("Replace rank 5");
    expect(actionTitle({ ...ACTION, kind: "planned_swap", ranks: "5,8-9" })).toBe(
      "Replace ranks 5, 8-9 at a step boundary",
    );
    expect(actionTitle({ ...ACTION, kind: "stack_capture", ranks: "" })).toBe(
      "Capture stacks, replace nothing",
    );
  });

  it("costs the median pause of all ranks, or says why that is not known", () => {
    expect(expectedCost(DETAIL.preconditions, "swap", "gpu")).toBe(
      "pause of 2.25 s × 64 ranks: 2 GPU minutes",
    );
    const unknown = { ...DETAIL.preconditions, expected_pause_s: null };
    expect(expectedCost(unknown, "swap", "gpu")).toContain("no repair of this job has resumed");
  });

  it("can be decided as long as the server would take it", () => {
    expect(verbsOf(DETAIL)).toEqual(["approvals", "rejections"]);
    expect(verbsOf({ ...DETAIL, status: "approved" })).toEqual(["cancellations"]);
    expect(verbsOf({ ...DETAIL, status: "dispatched" })).toEqual([]);
    const planned = { ...DETAIL, status: "dispatched", kind: "planned_swap" } as const;
    expect(verbsOf({ ...planned, reason: "prepared" })).toEqual(["cancellations"]);
    expect(verbsOf({ ...planned, reason: "switch" })).toEqual([]);
    expect(verbsOf({ ...DETAIL, cancel_requested: true })).toEqual([]);
  });

  it("warns of what refuses and of an end that nothing proves", () => {
    expect(warnings(DETAIL)).toEqual(["stop switch: on for all jobs, by ada"]);
    const lost = {
      name: "fence",
      state: "waits",
      reason: "not_fenced",
      detail: "make sure",
    } as const;
    expect(warnings({ ...DETAIL, checks: [lost] })).toEqual(["end of what leaves: make sure"]);
  });
});

describe("what has changed since it was read", () => {
  it("is nothing where only the reason to wait is new", () => {
    expect(changeText(ACTION, { ...ACTION, reason: "stop_switch" })).toBeNull();
  });

  it("names status, target and standby", () => {
    expect(changeText(ACTION, { ...ACTION, version: 4, ranks: "5-6" })).toBe(
      "it is proposed now (a person has to approve it); it was “Replace rank 5”, it is “Replace ranks 5-6”",
    );
    expect(changeText(ACTION, { ...ACTION, joiners: ["s1"] })).toContain("joining: s1");
    expect(changeText(ACTION, { ...SUCCEEDED, version: 9 })).toContain("it is succeeded now");
  });
});

describe("did it happen", () => {
  it("says how it ended", () => {
    expect(outcomeOf(SUCCEEDED, [RECOVERY])).toEqual({
      tone: "good",
      text: "Resumed at step 1201 on generation 4: 1 step run again, 2.30 s after the first order.",
    });
    expect(outcomeOf({ ...SUCCEEDED, status: "failed", reason: "no_standby" }, []).text).toBe(
      "Given up explicitly (no standby is ready): only the checkpoint on disk helps, and the incident pages a person.",
    );
    expect(outcomeOf({ ...SUCCEEDED, status: "failed", reason: "job_over" }, []).tone).toBe("soft");
    expect(outcomeOf({ ...SUCCEEDED, kind: "fallback" }, []).tone).toBe("hang");
    expect(outcomeOf({ ...SUCCEEDED, status: "rolled_back", reason: "cancelled" }, []).text).toBe(
      "Rolled back (somebody cancelled it); training went on all the time.",
    );
    expect(outcomeOf({ ...ACTION, kind: "stack_capture", status: "observing" }, []).tone).toBe(
      "slow",
    );
  });

  it("counts members, and whoever joins has detected nothing", () => {
    const rows = phaseRows(RECOVERY, ["s0"], false, formatBytes);
    expect(rows.map((row) => [row.key, row.state, row.durationMs, row.detail])).toEqual([
      ["detect", "done", 40, "1 of 1 members"],
      ["rendezvous", "done", 95, "2 of 2 members, slowest rank 1"],
      ["parameters", "pending", null, "0 of 2 members"],
      ["optimizer", "running", 200, "1 of 2 members, 3.2 MB"],
      ["resume", "pending", null, "0 of 2 members"],
      ["first_step", "pending", null, "0 of 2 members"],
    ]);
    const ended = phaseRows(
      { ...RECOVERY, ended_at: RECOVERY.started_at },
      ["s0"],
      false,
      formatBytes,
    );
    expect(ended.find((row) => row.key === "optimizer")?.state).toBe("failed");
  });

  it("asks of a planned replacement only what it does: who stays restores nothing", () => {
    const rows = phaseRows(RECOVERY, ["s0"], true, formatBytes);
    expect(rows.map((row) => row.key)).toEqual([
      "detect",
      "rendezvous",
      "optimizer",
      "resume",
      "first_step",
    ]);
    expect(rows.find((row) => row.key === "optimizer")).toMatchObject({
      state: "done",
      detail: "1 of 1 members, 3.2 MB",
    });
  });

  it("counts a phase that a member has told twice once, and names what failed", () => {
    const again = { ...RECOVERY, phases: [...RECOVERY.phases, phase("m0", 0, "rendezvous", 120)] };
    expect(phaseRows(again, ["s0"], false, formatBytes)[1]?.detail).toBe(
      "2 of 2 members, slowest rank 0",
    );
    const failed = phase("s0", 1, "resume", 0, { kind: "result", phase: null, outcome: "lost" });
    expect(refusals({ ...RECOVERY, phases: [...RECOVERY.phases, failed] })).toEqual([failed]);
  });

  it("shows the decision and the fence by the platform's own clock", () => {
    const rows = platformRows(SUCCEEDED, [RECOVERY]);
    expect(rows.map((row) => [row.key, row.state, row.durationMs])).toEqual([
      ["proposed", "done", null],
      ["decided", "done", 60_000],
      ["dispatched", "done", 200],
      ["fence", "done", 1000],
    ]);
    expect(platformRows(ACTION, []).map((row) => row.state)).toEqual([
      "done",
      "pending",
      "pending",
    ]);
    expect(platformRows({ ...ACTION, status: "expired" }, [])).toHaveLength(1);
  });
});

it("figures have a size that people read", () => {
  expect([4.21, 870, 2310, 41_000, 180_000].map(formatDuration)).toEqual([
    "4.2 ms",
    "870 ms",
    "2.31 s",
    "41 s",
    "3 min",
  ]);
  expect([999, 3_200_000, 1.5e12].map(formatBytes)).toEqual(["999 B", "3.2 MB", "1.5 TB"]);
  expect([581, 41, -3].map(formatLeft)).toEqual(["9 min 41 s", "41 s", "0 s"]);
});

it("the page is about what is open, and about stacks only where nothing else is", () => {
  const capture = { ...ACTION, id: "c", kind: "stack_capture", status: "observing" } as const;
  const over = { ...SUCCEEDED, id: "o" };
  expect(mainAction([capture, over, ACTION])?.id).toBe("act_1");
  expect(mainAction([capture, over])?.id).toBe("o");
  expect(mainAction([capture])?.id).toBe("c");
  expect(mainAction([])).toBeUndefined();
});

it("the job says its standbys, its policies and its switch", () => {
  const member = { alive: true, ready: true } as RepairMember;
  expect(standbysText([member, { ...member, ready: false }, { ...member, alive: false }])).toBe(
    "1 ready, 1 warming",
  );
  expect(standbysText([])).toBe("none");
  const row = { job: null, cause: null, stopped: false, updated_by: "ada" } as RepairPolicy;
  const rows = [
    row,
    { ...row, job: "other", stopped: true },
    { ...row, job: "llama" },
    { ...row, cause: "hang" } as const,
  ];
  const fitting = fittingPolicies(rows, "llama");
  expect(fitting.map((each) => [each.job, each.cause])).toEqual([
    ["llama", null],
    [null, "hang"],
    [null, null],
  ]);
  expect(stopText(fitting)).toBe("off");
  expect(
    stopText([
      { ...row, stopped: true },
      { ...row, job: "llama", stopped: true },
    ]),
  ).toBe("on for all jobs, by ada; on for this job, by ada");
});
