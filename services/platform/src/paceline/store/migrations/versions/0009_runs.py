"""Which run of a job's name a supervisor belongs to"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Who is there already belongs to the run that is known.
    op.add_column("repair_members", sa.Column("run", sa.BigInteger(), nullable=False, server_default="0"))
    op.alter_column("repair_members", "run", server_default="-1")


def downgrade() -> None:
    op.drop_column("repair_members", "run")
