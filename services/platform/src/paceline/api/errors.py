"""Errors of the API: each class has a status and a stable code and documents itself (RFC 9457).

ApiError
├── Unauthenticated 401        ├── NotFound 404          ├── BodyTooLarge 413
├── MissingScope 403           ├── Conflict 409 ...      ├── InvalidRequest 422
├── CrossSite 403              ├── StaleVersion 412      └── Unavailable 503
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, create_model

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FieldProblem(BaseModel):
    """One field that is wrong: where, what it is, what was expected."""

    model_config = ConfigDict(frozen=True)
    field: str
    value: str
    expected: str


class Problem(BaseModel):
    """The body of every error. `code` is stable and meant for programs, `detail` for people."""

    model_config = ConfigDict(frozen=True)
    type: str
    title: str
    status: int
    detail: str
    code: str
    trace_id: str
    fields: list[FieldProblem]


class ApiError(Exception):
    """Base of all errors that a caller may see."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Something went wrong on our side"

    def __init__(self, detail: str, fields: tuple[FieldProblem, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields = fields

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to this error."""
        return {}

    def problem(self, trace_id: str) -> Problem:
        """The body."""
        return Problem(
            type=f"urn:paceline:problem:{self.code}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            code=self.code,
            trace_id=trace_id,
            fields=list(self.fields),
        )


class InternalError(ApiError):
    pass


class Unauthenticated(ApiError):
    status = 401
    code = "unauthenticated"
    title = "No valid token"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": 'Bearer realm="paceline"'}


class MissingScope(ApiError):
    status = 403
    code = "missing_scope"
    title = "The token lacks a scope"


class CrossSite(ApiError):
    status = 403
    code = "cross_site_request"
    title = "A write with the session cookie from elsewhere"


class NotFound(ApiError):
    status = 404
    code = "not_found"
    title = "No such thing"


class MethodNotAllowed(ApiError):
    status = 405
    code = "method_not_allowed"
    title = "Another method is expected here"


class AlreadyAcknowledged(ApiError):
    status = 409
    code = "already_acknowledged"
    title = "The incident is acknowledged already"


class AlreadyResolved(ApiError):
    status = 409
    code = "already_resolved"
    title = "The incident is resolved already"


class IdempotencyKeyReused(ApiError):
    status = 409
    code = "idempotency_key_reused"
    title = "The Idempotency-Key belongs to another request"


class SecretShownOnce(ApiError):
    status = 409
    code = "secret_shown_once"
    title = "Carried out already; its secret is not shown again"


class NotReplayable(ApiError):
    status = 409
    code = "not_replayable"
    title = "The delivery is still under way"


class TooManyEndpoints(ApiError):
    status = 409
    code = "too_many_endpoints"
    title = "There are as many endpoints as are allowed"


class ActionNotOpen(ApiError):
    status = 409
    code = "action_not_open"
    title = "The action cannot be decided any more, or another one is open"


class SwitchOrdered(ApiError):
    status = 409
    code = "switch_ordered"
    title = "The replacement cannot be cancelled any more"


class ObservedOnly(ApiError):
    status = 409
    code = "observed_only"
    title = "The policy only observes"


class NoSupervisors(ApiError):
    status = 409
    code = "no_supervisors"
    title = "Nothing could carry it out"


class StaleVersion(ApiError):
    status = 412
    code = "stale_version"
    title = "Changed since you read it"


class BodyTooLarge(ApiError):
    status = 413
    code = "body_too_large"
    title = "The body is too large"


class VersionRequired(ApiError):
    status = 428
    code = "version_required"
    title = "Say which version you decided on"


class InvalidRequest(ApiError):
    status = 422
    code = "invalid_request"
    title = "The request is malformed"


class Unavailable(ApiError):
    status = 503
    code = "unavailable"
    title = "Try again shortly"

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "2"}


def responses(*errors: type[ApiError]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the errors a route may answer with; the code is a Literal."""
    by_status: dict[int, list[type[ApiError]]] = {}
    everywhere: list[type[ApiError]] = [*errors, InvalidRequest, Unavailable]
    for error in everywhere:
        by_status.setdefault(error.status, []).append(error)
    return {
        status: {
            "description": " · ".join(dict.fromkeys(error.title for error in group)),
            "model": _problem_model(status, tuple(error.code for error in group)),
        }
        for status, group in sorted(by_status.items())
    }


_models: dict[tuple[int, tuple[str, ...]], type[BaseModel]] = {}


def _problem_model(status: int, codes: tuple[str, ...]) -> type[BaseModel]:
    key = (status, tuple(dict.fromkeys(codes)))
    if key not in _models:
        name = "Problem" + "Or".join(code.title().replace("_", "") for code in key[1])
        _models[key] = create_model(
            name,
            __base__=Problem,
            status=(_literal(status), ...),
            code=(_literal(*codes), ...),
        )
    return _models[key]


def _literal(*values: object) -> Any:
    return Literal[values]
