"""Who owns a supervisor, and since when it is known"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("repair_members", sa.Column("uid", sa.BigInteger(), nullable=False, server_default="-1"))
    op.add_column("repair_members", sa.Column("registered_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE repair_members SET registered_at = told_at")
    op.alter_column("repair_members", "registered_at", nullable=False)
    op.alter_column("repair_members", "uid", server_default=None)


def downgrade() -> None:
    op.drop_column("repair_members", "registered_at")
    op.drop_column("repair_members", "uid")
