"""What a token may do."""

from enum import Enum


class Scope(str, Enum):
    JOBS_READ = "jobs:read"
    INCIDENTS_READ = "incidents:read"
    INCIDENTS_WRITE = "incidents:write"
    REPAIR_WRITE = "repair:write"  # decide about actions on machines, policies, the stop switch
    WEBHOOKS_READ = "webhooks:read"
    WEBHOOKS_WRITE = "webhooks:write"
    TOKENS_WRITE = "tokens:write"
    AUDIT_READ = "audit:read"


ALL_SCOPES = tuple(Scope)
