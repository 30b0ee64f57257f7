"""Which ranks a node has, readable without its JSON"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_nodes", sa.Column("rank_ranges", sa.String(), nullable=False, server_default=""))
    op.add_column("job_nodes", sa.Column("rank_min", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("job_nodes", sa.Column("rank_max", sa.BigInteger(), nullable=False, server_default="-1"))
    op.execute(
        """
        UPDATE job_nodes SET (rank_ranges, rank_min, rank_max) = (
            SELECT coalesce(string_agg(r->>'rank', ',' ORDER BY (r->>'rank')::bigint), ''),
                   coalesce(min((r->>'rank')::bigint), 0), coalesce(max((r->>'rank')::bigint), -1)
            FROM jsonb_array_elements(ranks) AS r
        )
        """
    )
    for name in ("rank_ranges", "rank_min", "rank_max"):
        op.alter_column("job_nodes", name, server_default=None)


def downgrade() -> None:
    for name in ("rank_max", "rank_min", "rank_ranges"):
        op.drop_column("job_nodes", name)
