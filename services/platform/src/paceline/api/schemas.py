"""What all read models share. They have no defaults: a client sees every field in every answer."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

ItemT = TypeVar("ItemT")


class ReadModel(BaseModel):
    """A response. Built from keywords or from attributes of a row."""

    model_config = ConfigDict(from_attributes=True, frozen=True)


class WriteModel(BaseModel):
    """A request body; an unknown field is an error, not silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(ReadModel, Generic[ItemT]):
    """One page of a list. `next_cursor` is null on the last one."""

    items: list[ItemT]
    next_cursor: str | None
