"""Webhook endpoints, delivery log, alert states"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('webhook_endpoints',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('url', sa.String(), nullable=False),
    sa.Column('event_types', postgresql.ARRAY(sa.Text()), nullable=False),
    sa.Column('secrets', postgresql.ARRAY(sa.Text()), nullable=False),
    sa.Column('enabled', sa.Boolean(), nullable=False),
    sa.Column('disabled_reason', sa.String(), nullable=False),
    sa.Column('consecutive_failures', sa.BigInteger(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_webhook_endpoints'))
    )
    op.create_table('deliveries',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('channel', sa.String(), nullable=False),
    sa.Column('endpoint_id', sa.String(), nullable=True),
    sa.Column('target', sa.String(), nullable=False),
    sa.Column('event_id', sa.String(), nullable=False),
    sa.Column('event_type', sa.String(), nullable=False),
    sa.Column('incident_id', sa.String(), nullable=False),
    sa.Column('payload', sa.String(), nullable=False),
    sa.Column('traceparent', sa.String(), nullable=False),
    sa.Column('status', sa.String(), nullable=False),
    sa.Column('attempts_count', sa.BigInteger(), nullable=False),
    sa.Column('attempts', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('response_status', sa.BigInteger(), nullable=True),
    sa.Column('error', sa.String(), nullable=False),
    sa.Column('next_attempt_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['endpoint_id'], ['webhook_endpoints.id'], name=op.f('fk_deliveries_endpoint_id'), ondelete='SET NULL'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_deliveries'))
    )
    op.create_index('ix_deliveries_due', 'deliveries', ['next_attempt_at'], unique=False, postgresql_where=sa.text("status = 'pending'"))
    op.create_index('ix_deliveries_created_at_id', 'deliveries', ['created_at', 'id'], unique=False)
    op.create_index(op.f('ix_deliveries_endpoint_id'), 'deliveries', ['endpoint_id'], unique=False)
    op.create_index(op.f('ix_deliveries_event_id'), 'deliveries', ['event_id'], unique=False)
    op.create_index(op.f('ix_deliveries_incident_id'), 'deliveries', ['incident_id'], unique=False)
    op.create_table('alert_states',
    sa.Column('incident_id', sa.String(), nullable=False),
    sa.Column('firing', sa.Boolean(), nullable=False),
    sa.Column('labels', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('former_labels', postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    sa.Column('annotations', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('generator_url', sa.String(), nullable=False),
    sa.Column('starts_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('incident_id', name=op.f('pk_alert_states'))
    )
    op.create_index('ix_alert_states_firing', 'alert_states', ['incident_id'], unique=False, postgresql_where=sa.text('firing'))


def downgrade() -> None:
    op.drop_table('alert_states')
    op.drop_table('deliveries')
    op.drop_table('webhook_endpoints')
