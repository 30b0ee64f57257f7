"""Paceline's tables, the repositories that read and write them, and their migrations.

PostgreSQL is the only dialect. Callers open one transaction for one request or one record
(`Database.transaction`), hand its session to repositories and never commit by themselves: the
timeline entry, the audit entry and the outbox row of a change commit with the change or not at
all. Sequence numbers of the outbox are handed out in commit order (docs/adr/0016-outbox.md), so a
reader that has seen n has seen everything below n.
"""

from paceline.store.engine import Database, is_transient
from paceline.store.schema import migrate

__all__ = ["Database", "is_transient", "migrate"]
