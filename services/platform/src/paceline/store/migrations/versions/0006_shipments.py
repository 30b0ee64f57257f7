"""What nodes ship with an incident"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("incidents", sa.Column("evidence", sa.String(), nullable=False, server_default="none"))
    op.alter_column("incidents", "evidence", server_default=None)
    op.create_table(
        "shipments",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("incident_id", sa.String(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("collected_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("parts", sa.BigInteger(), nullable=False),
        sa.Column("bytes_count", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.id"], name="fk_shipments_incident_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_shipments"),
    )
    op.create_index("ix_shipments_incident_id", "shipments", ["incident_id"])
    op.create_index("ix_shipments_state_deadline_at", "shipments", ["state", "deadline_at"])
    op.create_index("ix_shipments_received_at_id", "shipments", ["received_at", "id"])
    op.create_table(
        "shipment_parts",
        sa.Column("shipment_id", sa.String(), nullable=False),
        sa.Column("part", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["shipment_id"], ["shipments.id"], name="fk_shipment_parts_shipment_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("shipment_id", "part", name="pk_shipment_parts"),
    )


def downgrade() -> None:
    op.drop_table("shipment_parts")
    op.drop_table("shipments")
    op.drop_column("incidents", "evidence")
