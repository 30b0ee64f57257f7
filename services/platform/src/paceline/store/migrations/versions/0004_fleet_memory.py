"""Nodes, symptoms and versions of incidents, to be found again across jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TEXTS = ("program", "symptom", "versions")


def upgrade() -> None:
    for name in TEXTS:
        op.add_column("incidents", sa.Column(name, sa.String(), nullable=False, server_default=""))
        op.alter_column("incidents", name, server_default=None)
    op.create_index("ix_incidents_symptom_opened_at", "incidents", ["symptom", "opened_at"])
    op.create_table(
        "incident_places",
        sa.Column("incident_id", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("gpu", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.id"],
            name="fk_incident_places_incident_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("incident_id", "node", "gpu", name="pk_incident_places"),
    )
    op.create_index("ix_incident_places_node", "incident_places", ["node"])
    op.execute(
        """
        UPDATE incidents SET program = jobs."user" || '/' || jobs.name FROM jobs WHERE jobs.id = incidents.job
        """
    )
    op.execute(
        """
        INSERT INTO incident_places (incident_id, node, gpu, kind)
        SELECT id, root->>'node', coalesce((root->>'gpu')::bigint, -1), root->>'kind'
        FROM incidents, json_array_elements(verdict->'roots') AS root
        WHERE root->>'role' = 'initiating' AND root->>'node' IS NOT NULL
          AND root->>'kind' IN ('rank', 'node', 'gpu', 'link')
        ON CONFLICT DO NOTHING
        """
    )


def downgrade() -> None:
    op.drop_table("incident_places")
    op.drop_index("ix_incidents_symptom_opened_at", "incidents")
    for name in reversed(TEXTS):
        op.drop_column("incidents", name)
