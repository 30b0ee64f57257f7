"""The declarative base of all tables: one naming convention, aware timestamps, JSONB."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, MetaData
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

# Names that Alembic can refer to later; without them a constraint cannot be dropped by name.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

JsonObject = dict[str, Any]
JsonList = list[Any]


class Base(DeclarativeBase):
    """Base of every model. A new model module must be imported in `paceline.store.models`."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads the plain class attribute)
        datetime: DateTime(timezone=True),
        JsonObject: JSONB,
        JsonList: JSONB,
        int: BigInteger,
    }
