"""Text that may go into a query: no NUL (PostgreSQL refuses it), bounded."""

from typing import Annotated

from pydantic import StringConstraints

JobText = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00]+$")]
KindText = Annotated[str, StringConstraints(max_length=40, pattern=r"^[a-z_]+$")]
