"""Repair: jobs, actions, recoveries and their phases, supervisors, policies"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def text_(name: str) -> "sa.Column[Any]":
    return sa.Column(name, sa.String(), nullable=False)


def number(name: str) -> "sa.Column[Any]":
    return sa.Column(name, sa.BigInteger(), nullable=False)


def flag(name: str) -> "sa.Column[Any]":
    return sa.Column(name, sa.Boolean(), nullable=False)


def real(name: str) -> "sa.Column[Any]":
    return sa.Column(name, sa.Float(), nullable=False)


def json_(name: str) -> "sa.Column[Any]":
    return sa.Column(name, postgresql.JSONB(), nullable=False)


def at(name: str, *, nullable: bool = False) -> "sa.Column[Any]":
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "repair_jobs",
        text_("job"), text_("attempt"), text_("state"), number("generation"),
        sa.Column("action_id", sa.String(), nullable=True),
        at("due_at", nullable=True), json_("data"), at("updated_at"),
        sa.PrimaryKeyConstraint("job", "attempt", name="pk_repair_jobs"),
    )
    op.create_index("ix_repair_jobs_due_at", "repair_jobs", ["due_at"])
    op.create_table(
        "repair_actions",
        text_("id"), text_("job"), text_("attempt"),
        sa.Column("incident_id", sa.String(), nullable=True),
        text_("kind"), text_("cause"), text_("status"), text_("mode"), text_("reason"), text_("message"),
        text_("ranks"), json_("leavers"), json_("joiners"), number("generation"), number("step"),
        number("replayed"), text_("requested_by"), text_("decided_by"), text_("note"),
        flag("cancel_requested"), at("created_at"), at("expires_at"), at("decided_at", nullable=True),
        at("dispatched_at", nullable=True), at("ended_at", nullable=True), at("updated_at"), number("version"),
        sa.PrimaryKeyConstraint("id", name="pk_repair_actions"),
    )
    op.create_index("ix_repair_actions_created_at_id", "repair_actions", ["created_at", "id"])
    op.create_index("ix_repair_actions_job", "repair_actions", ["job", "attempt", "created_at"])
    op.create_index(
        "ix_repair_actions_open", "repair_actions", ["cause", "status"],
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index("ix_repair_actions_incident_id", "repair_actions", ["incident_id"])
    op.create_table(
        "recoveries",
        text_("id"), text_("action_id"), text_("job"), text_("attempt"), number("generation"),
        number("attempt_no"), text_("state"), text_("store"), json_("seats"), number("step"),
        number("replayed"), text_("reason"), at("started_at"), at("ended_at", nullable=True),
        sa.ForeignKeyConstraint(
            ["action_id"], ["repair_actions.id"], name="fk_recoveries_action_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_recoveries"),
    )
    op.create_index("ix_recoveries_action_id", "recoveries", ["action_id"])
    op.create_index("ix_recoveries_started_at_id", "recoveries", ["started_at", "id"])
    op.create_index(
        "uq_recoveries_job_attempt_generation", "recoveries", ["job", "attempt", "generation"], unique=True
    )
    op.create_index(
        "uq_recoveries_under_way", "recoveries", ["job", "attempt"], unique=True,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "recovery_phases",
        text_("id"), text_("job"), text_("attempt"), number("generation"), text_("member"), number("rank"),
        text_("kind"), text_("phase"), text_("outcome"), real("duration_ms"), number("step"),
        number("replayed"), number("bytes_count"), text_("message"), at("at"),
        sa.PrimaryKeyConstraint("id", name="pk_recovery_phases"),
    )
    op.create_index("ix_recovery_phases_generation", "recovery_phases", ["job", "attempt", "generation"])
    create_registry()
    # Whoever may do everything else may decide about repair: nobody can give a scope that they lack.
    op.execute(
        "UPDATE tokens SET scopes = array_append(scopes, 'repair:write') "
        "WHERE scopes @> ARRAY['tokens:write', 'incidents:write'] AND NOT scopes @> ARRAY['repair:write']"
    )


def create_registry() -> None:
    op.create_table(
        "repair_members",
        text_("job"), text_("attempt"), text_("member"), text_("node"), text_("role"), number("rank"),
        number("pid"), number("child_pid"), number("child_pid_start"), number("generation"), number("step"),
        text_("store"), text_("replica"), text_("failure_domain"), flag("ready"), number("world_size"),
        text_("support"), real("lease_s"), flag("left"), at("told_at"), at("updated_at"),
        sa.PrimaryKeyConstraint("job", "attempt", "member", name="pk_repair_members"),
    )
    op.create_table(
        "repair_policies",
        text_("job"), text_("cause"), text_("mode"), flag("stopped"), json_("limits"), number("version"),
        text_("updated_by"), at("updated_at"),
        sa.PrimaryKeyConstraint("job", "cause", name="pk_repair_policies"),
    )


def downgrade() -> None:
    op.execute("UPDATE tokens SET scopes = array_remove(scopes, 'repair:write')")
    op.drop_table("repair_policies")
    op.drop_table("repair_members")
    op.drop_table("recovery_phases")
    op.drop_table("recoveries")
    op.drop_table("repair_actions")
    op.drop_table("repair_jobs")
