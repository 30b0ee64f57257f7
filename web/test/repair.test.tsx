import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen, waitFor, within } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { api, type Incident } from "../src/api/client";
import type { RepairDetail } from "../src/api/repair";
import { NextRepair } from "../src/repair/of-incident";
import { Proposal } from "../src/repair/proposal";
import { RecoveryProgress } from "../src/repair/recovery";
import { ACTION, DETAIL, RECOVERY, SUCCEEDED } from "./repair-fixtures";

vi.mock("../src/api/client", async (original) => ({
  ...(await original<typeof import("../src/api/client")>()),
  api: { GET: vi.fn(), POST: vi.fn(), PUT: vi.fn() },
}));

/** Answers of the server by path; a path without one is never answered. */
let answers: Record<string, unknown>;
const post = vi.mocked(api.POST) as unknown as ReturnType<typeof vi.fn>;

function problem(status: number, code: string, detail: string) {
  return { error: { code, detail }, response: new Response(null, { status }) };
}

beforeEach(() => {
  answers = { "/v1/me": { scopes: ["incidents:read", "repair:write"] } };
  vi.mocked(api.GET as unknown as ReturnType<typeof vi.fn>).mockImplementation((path: string) =>
    path in answers
      ? Promise.resolve({ data: answers[path], response: new Response("{}") })
      : new Promise(() => undefined),
  );
  post.mockReset();
});
afterEach(cleanup);

function show(what: ReactNode) {
  const client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  return render(<QueryClientProvider client={client}>{what}</QueryClientProvider>);
}

async function showProposal(action: RepairDetail) {
  answers["/v1/repair/actions/{action_id}"] = action;
  show(<Proposal actionId={action.id} unit="gpu" owner="user code" />);
  return within(await screen.findByRole("region", { name: "Proposal" }));
}

function button(name: string): HTMLButtonElement {
  return screen.getByRole("button", { name });
}

it("shows every precondition with its state and its reason", async () => {
  const proposal = await showProposal(DETAIL);
  const checks = within(proposal.getByRole("list", { name: "Preconditions" }));
  expect(checks.getAllByRole("listitem").map((item) => item.textContent)).toEqual([
    "✓metstandby: 1 ready, 1 needed",
    "✕refusedstop switch: on for all jobs, by adastop_switch",
    "…waitsapproval: a person decidesneeds_approval",
    "○not yetevidence is in: later",
  ]);
  expect(proposal.getByText("1 of 64 ranks are replaced")).toBeTruthy();
  expect(proposal.getByText(/^expires in/)).toBeTruthy();
});

it("approves the version that was read, with a reason and a key of its own", async () => {
  await showProposal(DETAIL);
  post.mockResolvedValue({ data: {}, response: new Response("{}", { status: 201 }) });
  fireEvent.click(button("Approve…"));
  expect(screen.getByText(/gpu-1 leaves, gpu-9 joins/)).toBeTruthy();
  expect(button("Approve").disabled).toBe(true);
  fireEvent.change(screen.getByLabelText(/^Reason/), { target: { value: "seen" } });
  fireEvent.click(button("Approve"));
  await waitFor(() => expect(screen.queryByLabelText(/^Reason/)).toBeNull());
  const [path, request] = post.mock.calls[0] as [string, Record<string, never>];
  expect(path).toBe("/v1/repair/actions/{action_id}/approvals");
  expect(request).toMatchObject({
    params: { header: { "If-Match": '"3"', "Idempotency-Key": expect.stringMatching(/^\w{32}$/) } },
    body: { note: "seen" },
  });
});

it("says what has changed since it was read, and decides nothing", async () => {
  await showProposal(DETAIL);
  post.mockImplementation(() => {
    answers["/v1/repair/actions/{action_id}"] = { ...DETAIL, version: 4, ranks: "5-6" };
    return Promise.resolve(
      problem(412, "stale_version", "If-Match is 3, the action is at version 4"),
    );
  });
  fireEvent.click(button("Approve…"));
  fireEvent.change(screen.getByLabelText(/^Reason/), { target: { value: "seen" } });
  fireEvent.click(button("Approve"));
  await screen.findByText(/it is “Replace ranks 5-6”/);
  expect(screen.getByRole("alert").textContent).toContain("Changed since you read it:");
  expect(screen.queryByRole("button", { name: "Approve" })).toBeNull();
  fireEvent.click(button("Read it again"));
  expect(screen.getByText("Approve: Replace ranks 5-6")).toBeTruthy();
  expect(screen.queryByRole("alert")).toBeNull();
});

it("a conflict is shown with the state that there is now", async () => {
  await showProposal(DETAIL);
  post.mockImplementation(() => {
    answers["/v1/repair/actions/{action_id}"] = { ...DETAIL, ...SUCCEEDED };
    return Promise.resolve(problem(409, "action_not_open", "the action is succeeded"));
  });
  fireEvent.click(button("Reject…"));
  fireEvent.change(screen.getByLabelText(/^Reason/), { target: { value: "no" } });
  fireEvent.click(button("Reject"));
  await screen.findByText(/it is succeeded now/);
  expect(screen.queryByRole("button", { name: "Read it again" })).toBeNull();
});

it("without the scope nothing can be pressed, and the scope is named", async () => {
  answers["/v1/me"] = { scopes: ["incidents:read"] };
  await showProposal(DETAIL);
  await screen.findByText("Needs the scope repair:write; your token has incidents:read.");
  expect(button("Approve…").disabled).toBe(true);
  expect(button("Reject…").disabled).toBe(true);
});

it("what is only observed cannot be approved, and says what would help", async () => {
  const proposal = await showProposal({ ...DETAIL, mode: "observe" });
  expect(button("Approve…").disabled).toBe(true);
  expect(button("Reject…").disabled).toBe(false);
  expect(proposal.getByText(/the policy for this cause only observes/)).toBeTruthy();
});

it("a fault of software has an owner and stacks, and nobody to replace", async () => {
  const proposal = await showProposal({
    ...DETAIL,
    kind: "stack_capture",
    cause: "software",
    status: "succeeded",
    reason: "shipped",
    ranks: "",
    checks: [],
    places: [],
  });
  expect(proposal.getByText("Capture stacks, replace nothing")).toBeTruthy();
  expect(proposal.getByText("user code")).toBeTruthy();
  expect(proposal.queryByRole("button")).toBeNull();
});

it("says that it loads, that nothing was proposed, and what the server refused", async () => {
  const incident = { id: "inc_1", cost: { unit: "gpu" }, what_next: { owner: "user_code" } };
  show(<NextRepair incident={incident as unknown as Incident} />);
  expect(screen.getByText("Looking for proposals…")).toBeTruthy();
  cleanup();
  answers["/v1/repair/actions"] = { items: [] };
  show(<NextRepair incident={incident as unknown as Incident} />);
  await screen.findByText(/Repair has proposed nothing/);
  cleanup();
  vi.mocked(api.GET as unknown as ReturnType<typeof vi.fn>).mockResolvedValue(
    problem(503, "unavailable", "the database does not answer"),
  );
  show(<NextRepair incident={incident as unknown as Incident} />);
  expect((await screen.findByRole("alert")).textContent).toBe("the database does not answer");
});

it("shows the phases while they come in", async () => {
  answers["/v1/repair/recoveries"] = { items: [RECOVERY] };
  show(<RecoveryProgress action={{ ...ACTION, status: "observing", reason: "restoring" }} />);
  const phases = within(await screen.findByRole("list", { name: "Phases of generation 4" }));
  expect(phases.getByText(/2 of 2 members, slowest rank 1/)).toBeTruthy();
  expect(screen.getByRole("status").textContent).toBe("Under way: state is restored.");
});
