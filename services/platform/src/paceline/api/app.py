"""The FastAPI application: routes, errors, middleware, the console's files."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from paceline.api.audit import endpoints as audit
from paceline.api.console import mount_console
from paceline.api.errors import PROBLEM_MEDIA_TYPE
from paceline.api.events import endpoints as events
from paceline.api.events.schemas import EventRead, ResetRead
from paceline.api.handlers import install_handlers
from paceline.api.health import endpoints as health
from paceline.api.incidents import endpoints as incidents
from paceline.api.jobs import endpoints as jobs
from paceline.api.middleware import BodyLimit, RequestFrame
from paceline.api.nodes import endpoints as nodes
from paceline.api.repair import endpoints as repair
from paceline.api.services import Services
from paceline.api.session import endpoints as session
from paceline.api.tokens import endpoints as tokens
from paceline.api.webhooks import endpoints as webhooks
from paceline.store.rank_states import RankState

API_VERSION = "1.0.0"
ROUTERS = (session, jobs, incidents, nodes, events, webhooks, tokens, audit, repair, health)


def create_app(services: Services) -> FastAPI:
    """The application over `services`; nothing is started and nobody is contacted."""
    app = FastAPI(
        title="Paceline",
        version=API_VERSION,
        description="Jobs, incidents and what became of them.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    for module in ROUTERS:
        app.include_router(module.router)
    install_handlers(app)
    if services.settings.console_path is not None:
        mount_console(app, services.settings.console_path)
    app.add_middleware(BodyLimit, bytes_max=services.settings.body_bytes_max)
    app.add_middleware(RequestFrame, clock=services.clock)
    app.openapi = lambda: build_openapi(app)  # type: ignore[method-assign]
    return app


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's description, with errors under their real media type and FastAPI's own error
    model, which no route answers with, taken out."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        for operations in schema["paths"].values():
            for operation in operations.values():
                _describe_errors(operation["responses"])
        _describe_stream(schema)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        app.openapi_schema = schema
    return app.openapi_schema


def _describe_stream(schema: dict[str, Any]) -> None:
    """Event data travels as text; its schemas are named here so that clients get types for them."""
    schemas = schema["components"]["schemas"]
    _, definitions = models_json_schema(
        [(EventRead, "serialization"), (ResetRead, "serialization")],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(definitions["$defs"])
    schemas["RankState"]["x-enum-varnames"] = [state.name for state in RankState]
    stream = schema["paths"]["/v1/events"]["get"]["responses"]["200"]
    stream["description"] = (
        "`ready` and `reset` carry ResetRead, every other event EventRead, as JSON in `data`"
    )


def _describe_errors(described: dict[str, Any]) -> None:
    for status, response in described.items():
        content = response.get("content", {})
        if int(status) >= 400 and "application/json" in content:
            content[PROBLEM_MEDIA_TYPE] = content.pop("application/json")
