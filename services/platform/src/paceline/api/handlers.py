"""From exceptions to problems. What we did not expect is logged and told without details."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from paceline.api.errors import (
    ApiError,
    FieldProblem,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unavailable,
)
from paceline.api.middleware import problem_response
from paceline.runtime.logging import get_logger
from paceline.store import is_transient

log = get_logger(__name__)
FIELDS_MAX = 20
VALUE_LENGTH_MAX = 200
SECRET_FIELDS = frozenset({"token", "secret"})


def install_handlers(app: FastAPI) -> None:
    """Every error leaves as a problem."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    for kind in (SQLAlchemyError, OSError, TimeoutError, Exception):
        app.add_exception_handler(kind, _on_unexpected)


def _answer(request: Request, error: ApiError) -> Response:
    return problem_response(error, getattr(request.state, "trace_id", ""))


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fields = field_problems(error.errors())
    first = fields[0] if fields else FieldProblem(field="request", value="", expected="a valid request")
    detail = f"{first.field} is {first.value or 'missing'}: {first.expected}"
    return _answer(request, InvalidRequest(detail, tuple(fields)))


def field_problems(errors: Sequence[Any]) -> list[FieldProblem]:
    """Field, value and expectation of each validation error; secrets are not repeated."""
    problems = []
    for error in errors[:FIELDS_MAX]:
        where = [str(part) for part in error["loc"]]
        secret = bool(SECRET_FIELDS & set(where))
        value = "" if secret or error["type"] == "missing" else repr(error.get("input"))
        problems.append(
            FieldProblem(field=".".join(where), value=value[:VALUE_LENGTH_MAX], expected=error["msg"])
        )
    return problems


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 404:
        return _answer(request, NotFound(f"no route {path!r}; /v1/openapi.json describes them"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return _answer(request, MethodNotAllowed(f"{request.method} {path!r} is not one of {allowed}"))
    if error.status_code < 500:
        problem = FieldProblem(field="request", value="", expected=str(error.detail)[:VALUE_LENGTH_MAX])
        return _answer(request, InvalidRequest(str(error.detail)[:VALUE_LENGTH_MAX], (problem,)))
    return await _on_unexpected(request, error)


async def _on_unexpected(request: Request, error: Exception) -> Response:
    trace_id = getattr(request.state, "trace_id", "")
    if is_transient(error):
        log.warning("request_unavailable", path=request.url.path, trace_id=trace_id, error=str(error)[:300])
        return _answer(request, Unavailable("the database does not answer; nothing was changed"))
    log.error("request_failed", path=request.url.path, trace_id=trace_id, exc_info=error)
    return _answer(request, InternalError(f"unexpected; the log has the trace id {trace_id}"))
