import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { ApiError, api, type Schemas, unwrap } from "./client";
import { useMe } from "./queries";

export type RepairAction = Schemas["RepairActionRead"];
export type RepairDetail = Schemas["RepairActionDetail"];
export type Recovery = Schemas["RecoveryRead"];
export type RepairMember = Schemas["RepairMemberRead"];
export type RepairPolicy = Schemas["PolicyRead"];
export type Verb = "approvals" | "rejections" | "cancellations";

/** The scope that deciding about repair needs. */
export const REPAIR_SCOPE = "repair:write";
const UNDER_WAY_MS = 1_000;
const OPEN_MS = 2_000;
const IDLE_MS = 15_000;
const ACTIONS_MAX = 20;
const STANDBYS_MAX = 200;

/** All start with "repair", which the event `repair.changed` makes stale. */
const keys = {
  ofIncident: (id: string) => ["repair", "incident", id] as const,
  ofJob: (id: string) => ["repair", "job", id] as const,
  action: (id: string) => ["repair", "action", id] as const,
  // With the version: the end of an action is read once more after the last poll.
  recoveries: (id: string, version: number) => ["repair", "recoveries", id, version] as const,
  state: (job: string) => ["repair", "state", job] as const,
  standbys: (job: string) => ["repair", "standbys", job] as const,
  members: (job: string) => ["repair", "members", job] as const,
  policies: ["repair", "policies"] as const,
};

export function isUnderWay(action: RepairAction): boolean {
  return action.status === "dispatched" || action.status === "observing";
}

export function isOver(action: RepairAction): boolean {
  return !isUnderWay(action) && action.status !== "proposed" && action.status !== "approved";
}

/** Why an action waits, and how far its members are, change without an event: so they are polled. */
function pace(action: RepairAction | undefined): number | false {
  if (action === undefined) return IDLE_MS;
  if (isUnderWay(action)) return UNDER_WAY_MS;
  return isOver(action) ? false : OPEN_MS;
}

/** Newest first. */
export function useIncidentActions(incident: string) {
  return useQuery({
    queryKey: keys.ofIncident(incident),
    refetchInterval: IDLE_MS,
    queryFn: async () => {
      const query = { incident: [incident], limit: ACTIONS_MAX };
      return unwrap(await api.GET("/v1/repair/actions", { params: { query } })).items;
    },
  });
}

/** Newest first. */
export function useJobActions(job: string) {
  return useQuery({
    queryKey: keys.ofJob(job),
    refetchInterval: IDLE_MS,
    queryFn: async () => {
      const query = { job: [job], limit: 5 };
      return unwrap(await api.GET("/v1/repair/actions", { params: { query } })).items;
    },
  });
}

export function useRepairAction(id: string) {
  return useQuery({
    queryKey: keys.action(id),
    refetchInterval: (query) => pace(query.state.data),
    queryFn: async () => {
      const path = { action_id: id };
      return unwrap(await api.GET("/v1/repair/actions/{action_id}", { params: { path } }));
    },
  });
}

/** Generations that the action has opened, oldest first. */
export function useRecoveries(action: RepairAction) {
  return useQuery({
    queryKey: keys.recoveries(action.id, action.version),
    placeholderData: keepPreviousData,
    refetchInterval: pace(action),
    queryFn: async () => {
      const query = { action: [action.id] };
      const found = unwrap(await api.GET("/v1/repair/recoveries", { params: { query } }));
      return found.items.toReversed();
    },
  });
}

interface DecisionRequest {
  readonly verb: Verb;
  /** As it was read: If-Match names this version. */
  readonly seen: RepairAction;
  readonly note: string;
  /** The same for each try of one decision. */
  readonly requestKey: string;
}

/** Decide about an action. Whatever the answer is, everything about repair is read again. */
export function useDecision() {
  const client = useQueryClient();
  return useMutation<unknown, ApiError, DecisionRequest>({
    mutationFn: async ({ verb, seen, note, requestKey }) =>
      unwrap(
        await api.POST(`/v1/repair/actions/{action_id}/${verb}`, {
          params: {
            path: { action_id: seen.id },
            header: { "If-Match": `"${seen.version}"`, "Idempotency-Key": requestKey },
          },
          body: { note },
        }),
      ),
    onSettled: () =>
      Promise.all([
        client.invalidateQueries({ queryKey: ["repair"] }),
        client.invalidateQueries({ queryKey: ["incidents"] }),
      ]),
  });
}

/** Whether an answer says that the action is no longer what was read. */
export function isChanged(error: Error | null): boolean {
  if (!(error instanceof ApiError)) return false;
  return (
    error.status === 412 || error.code === "action_not_open" || error.code === "switch_ordered"
  );
}

/** What a person without the scope is told; null for one who may decide. */
export function useRepairObjection(): string | null {
  const me = useMe();
  const scopes = me.data?.scopes;
  if (!scopes || scopes.includes(REPAIR_SCOPE)) return null;
  return `Needs the scope ${REPAIR_SCOPE}; your token has ${scopes.join(", ") || "none"}.`;
}

export function useRepairState(job: string, enabled: boolean) {
  return useQuery({
    queryKey: keys.state(job),
    enabled,
    refetchInterval: OPEN_MS,
    queryFn: async () => unwrap(await api.GET("/v1/repair/state", { params: { query: { job } } })),
  });
}

export function useStandbys(job: string) {
  return useQuery({
    queryKey: keys.standbys(job),
    refetchInterval: IDLE_MS,
    queryFn: async () => {
      const query = { job: [job], role: ["standby" as const], limit: STANDBYS_MAX };
      return unwrap(await api.GET("/v1/repair/members", { params: { query } })).items;
    },
  });
}

/** One supervisor of a rank is enough to know that the job has them. */
export function useHasSupervisors(job: string) {
  return useQuery({
    queryKey: keys.members(job),
    refetchInterval: IDLE_MS,
    queryFn: async () => {
      const query = { job: [job], limit: 1 };
      const found = unwrap(await api.GET("/v1/repair/members", { params: { query } }));
      return found.items.length > 0;
    },
  });
}

export function usePolicies() {
  return useQuery({
    queryKey: keys.policies,
    refetchInterval: IDLE_MS,
    queryFn: async () => unwrap(await api.GET("/v1/repair/policies")),
  });
}

interface StopRequest {
  readonly job: string;
  readonly stopped: boolean;
  readonly note: string;
  /** Version of the policy that was read, null where there was none. */
  readonly version: number | null;
}

export function useStop() {
  const client = useQueryClient();
  return useMutation<unknown, ApiError, StopRequest>({
    mutationFn: async ({ job, stopped, note, version }) =>
      unwrap(
        await api.PUT("/v1/repair/stop", {
          params: { header: version === null ? {} : { "If-Match": `"${version}"` } },
          body: { job, stopped, note },
        }),
      ),
    onSettled: () => client.invalidateQueries({ queryKey: ["repair"] }),
  });
}
