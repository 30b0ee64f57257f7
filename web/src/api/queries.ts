import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { IncidentFilter } from "../router";
import { ApiError, api, drawRequestKey, unwrap } from "./client";

/** Query keys start with the noun that the event stream makes stale. */
export const keys = {
  me: ["me"] as const,
  incidents: (filter: IncidentFilter) => ["incidents", "list", filter] as const,
  incident: (id: string) => ["incidents", id] as const,
  jobs: ["jobs", "list"] as const,
  job: (id: string) => ["jobs", id] as const,
  ranks: (id: string) => ["jobs", id, "ranks"] as const,
  communicators: (id: string) => ["jobs", id, "communicators"] as const,
  plane: (id: string) => ["jobs", id, "plane"] as const,
  scaling: (id: string) => ["jobs", id, "scaling"] as const,
  // Not below "jobs": an event of the job changes nothing in it, and each answer is a simulation.
  economics: (id: string) => ["economics", id] as const,
  nodes: ["incidents", "nodes"] as const,
  node: (name: string) => ["incidents", "nodes", name] as const,
  deliveries: ["deliveries"] as const,
  audit: ["audit"] as const,
};

const RANKS_PER_PAGE = 1000;
const RANK_PAGES_MAX = 128;

export function useMe() {
  return useQuery({
    queryKey: keys.me,
    retry: false,
    refetchInterval: (query) => (query.state.status === "error" ? 3_000 : false),
    staleTime: 60_000,
    queryFn: async () => {
      const result = await api.GET("/v1/me");
      return result.response.status === 401 ? null : unwrap(result);
    },
  });
}

export function useSignIn() {
  const client = useQueryClient();
  return useMutation<unknown, ApiError, string>({
    mutationFn: async (token) => unwrap(await api.POST("/v1/session", { body: { token } })),
    onSuccess: () => client.invalidateQueries(),
  });
}

export function useIncidents(filter: IncidentFilter) {
  return useInfiniteQuery({
    queryKey: keys.incidents(filter),
    initialPageParam: null as string | null,
    queryFn: async ({ pageParam }) => {
      const query = {
        ...(filter.status && { status: [filter.status] }),
        ...(filter.verdict && { verdict: [filter.verdict] }),
        ...(filter.job && { job: [filter.job] }),
        ...(pageParam && { cursor: pageParam }),
      };
      // The generated enums are narrower than a deep link; the server checks the words.
      return unwrap(await api.GET("/v1/incidents", { params: { query: query as never } }));
    },
    getNextPageParam: (page) => page.next_cursor,
  });
}

export function useIncident(id: string) {
  return useQuery({
    queryKey: keys.incident(id),
    queryFn: async () =>
      unwrap(
        await api.GET("/v1/incidents/{incident_id}", { params: { path: { incident_id: id } } }),
      ),
  });
}

export function useIncidentAction(id: string, verb: "acknowledgements" | "resolutions") {
  const client = useQueryClient();
  return useMutation<unknown, ApiError, void>({
    mutationFn: async () =>
      unwrap(
        await api.POST(`/v1/incidents/{incident_id}/${verb}`, {
          params: { path: { incident_id: id }, header: { "Idempotency-Key": drawRequestKey() } },
          body: { note: "" },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: ["incidents"] }),
  });
}

export function useAddNote(id: string) {
  const client = useQueryClient();
  return useMutation<unknown, ApiError, string>({
    mutationFn: async (text) =>
      unwrap(
        await api.POST("/v1/incidents/{incident_id}/notes", {
          params: { path: { incident_id: id }, header: { "Idempotency-Key": drawRequestKey() } },
          body: { text },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: keys.incident(id) }),
  });
}

export function useJobs() {
  return useQuery({
    queryKey: keys.jobs,
    queryFn: async () => unwrap(await api.GET("/v1/jobs")),
    refetchInterval: 10_000,
  });
}

export function useJob(id: string) {
  return useQuery({
    queryKey: keys.job(id),
    queryFn: async () => unwrap(await api.GET("/v1/jobs/{job}", { params: { path: { job: id } } })),
  });
}

export function useRanks(id: string) {
  return useQuery({
    queryKey: keys.ranks(id),
    queryFn: async () => {
      const path = { job: id };
      const items = [];
      let cursor: string | null = null;
      for (let page = 0; page < RANK_PAGES_MAX; page++) {
        const query: { limit: number; cursor?: string } = { limit: RANKS_PER_PAGE };
        if (cursor) query.cursor = cursor;
        const part = unwrap(await api.GET("/v1/jobs/{job}/ranks", { params: { path, query } }));
        items.push(...part.items);
        cursor = part.next_cursor;
        if (cursor === null) break;
      }
      return items;
    },
  });
}

export function useCommunicators(id: string) {
  return useQuery({
    queryKey: keys.communicators(id),
    queryFn: async () =>
      unwrap(await api.GET("/v1/jobs/{job}/communicators", { params: { path: { job: id } } })),
  });
}

export function useScaling(id: string) {
  return useQuery({
    queryKey: keys.scaling(id),
    refetchInterval: 30_000,
    queryFn: async () =>
      unwrap(await api.GET("/v1/jobs/{job}/scaling", { params: { path: { job: id } } })),
  });
}

export function useEconomics(id: string) {
  return useQuery({
    queryKey: keys.economics(id),
    staleTime: 300_000,
    queryFn: async () =>
      unwrap(await api.GET("/v1/jobs/{job}/economics", { params: { path: { job: id } } })),
  });
}

/** Nodes that were a first cause: they change with the incidents. */
export function useNodes() {
  return useQuery({
    queryKey: keys.nodes,
    queryFn: async () => unwrap(await api.GET("/v1/nodes", { params: { query: { limit: 200 } } })),
  });
}

export function useNode(name: string) {
  return useQuery({
    queryKey: keys.node(name),
    queryFn: async () =>
      unwrap(await api.GET("/v1/nodes/{node}", { params: { path: { node: name } } })),
  });
}

/** State codes of all ranks, one byte each; polled only while the page is visible. */
export function usePlane(id: string) {
  return useQuery({
    queryKey: keys.plane(id),
    refetchInterval: 2_000,
    queryFn: async () => {
      const response = await fetch(`/v1/jobs/${encodeURIComponent(id)}/planes/state`);
      if (!response.ok) {
        throw new ApiError(
          response.status,
          "plane",
          `No rank map: the server answered ${response.status}.`,
        );
      }
      return new Uint8Array(await response.arrayBuffer());
    },
  });
}

export function useDeliveries() {
  return useQuery({
    queryKey: keys.deliveries,
    refetchInterval: 5_000,
    queryFn: async () => unwrap(await api.GET("/v1/deliveries")),
  });
}

export function useReplayDelivery() {
  const client = useQueryClient();
  return useMutation<unknown, ApiError, string>({
    mutationFn: async (id) =>
      unwrap(
        await api.POST("/v1/deliveries/{delivery_id}/replays", {
          params: { path: { delivery_id: id }, header: { "Idempotency-Key": drawRequestKey() } },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: keys.deliveries }),
  });
}

export function useAudit() {
  return useQuery({
    queryKey: keys.audit,
    queryFn: async () => unwrap(await api.GET("/v1/audit")),
  });
}
