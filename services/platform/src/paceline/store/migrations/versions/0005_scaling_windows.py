"""Judged windows of iterations"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "scaling_windows",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("attempt", sa.String(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("iterations", sa.BigInteger(), nullable=False),
        sa.Column("ranks", sa.BigInteger(), nullable=False),
        sa.Column("ranks_expected", sa.BigInteger(), nullable=False),
        sa.Column("step_s", sa.Float(), nullable=False),
        sa.Column("cv", postgresql.JSONB(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("refused", sa.String(), nullable=False),
        sa.Column("judged_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_scaling_windows"),
    )
    op.create_index(
        "ix_scaling_windows_job_attempt_judged_at_id",
        "scaling_windows",
        ["job", "attempt", "judged_at", "id"],
    )
    op.create_index("ix_scaling_windows_judged_at", "scaling_windows", ["judged_at"])


def downgrade() -> None:
    op.drop_table("scaling_windows")
