import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type IncidentSummary = Schemas["IncidentSummary"];
export type Incident = Schemas["IncidentRead"];
export type Job = Schemas["JobRead"];
export type JobSummary = Schemas["JobSummary"];
export type Rank = Schemas["RankRead"];
export type Communicator = Schemas["CommunicatorRead"];
export type Delivery = Schemas["DeliveryRead"];
export type AuditEntry = Schemas["AuditEntryRead"];
export type Root = Schemas["RootRead"];

/** The server's problem+json, as an error that a person can act on. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** A header that no other site can add without our consent; the server wants it on cookie writes. */
const sameSite: Middleware = {
  onRequest({ request }) {
    request.headers.set("X-Paceline-Console", "1");
    return request;
  },
};

export const api = createClient<paths>({ baseUrl: "", credentials: "same-origin" });
api.use(sameSite);

/** A fresh Idempotency-Key. `crypto.randomUUID` exists on https and localhost only. */
export function drawRequestKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

interface Result<Data> {
  readonly data?: Data | undefined;
  readonly error?: unknown;
  readonly response: Response;
}

/** The data of an answer; throws `ApiError` for every other one. */
export function unwrap<Data>({ data, error, response }: Result<Data>): Data {
  if (error === undefined && response.ok) return data as Data;
  const problem = (error ?? {}) as { detail?: string; title?: string; code?: string };
  const message = problem.detail ?? problem.title ?? `The server answered ${response.status}.`;
  throw new ApiError(response.status, problem.code ?? "unknown", message);
}
