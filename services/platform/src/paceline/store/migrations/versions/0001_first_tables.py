"""First tables"""

from sqlalchemy.dialects import postgresql
import sqlalchemy as sa
from alembic import op

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


# The audit log is append-only for everybody who is not allowed to drop the trigger.
AUDIT_GUARD = """
CREATE FUNCTION paceline_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit_entries is append-only: % refused', TG_OP;
END
$$
"""
AUDIT_TRIGGER = """
CREATE TRIGGER audit_entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entries
FOR EACH STATEMENT EXECUTE FUNCTION paceline_audit_is_append_only()
"""


def upgrade() -> None:
    _create_registry()
    _create_incidents()
    _create_incident_records()
    _create_access()
    op.execute(AUDIT_GUARD)
    op.execute(AUDIT_TRIGGER)


def _create_registry() -> None:
    op.create_table('jobs',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('attempt', sa.String(), nullable=False),
    sa.Column('cluster', sa.String(), nullable=False),
    sa.Column('tenant', sa.String(), nullable=False),
    sa.Column('user', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('world_size', sa.BigInteger(), nullable=False),
    sa.Column('shards', sa.BigInteger(), nullable=False),
    sa.Column('state', sa.String(), nullable=False),
    sa.Column('id_source', sa.String(), nullable=False),
    sa.Column('attempt_source', sa.String(), nullable=False),
    sa.Column('started_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('ended_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('end_reason', sa.String(), nullable=False),
    sa.Column('versions', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('coordinate_source', sa.String(), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_jobs'))
    )
    op.create_index('ix_jobs_started_at_id', 'jobs', ['started_at', 'id'], unique=False)
    op.create_table('job_attempts',
    sa.Column('job', sa.String(), nullable=False),
    sa.Column('attempt', sa.String(), nullable=False),
    sa.Column('state', sa.String(), nullable=False),
    sa.Column('world_size', sa.BigInteger(), nullable=False),
    sa.Column('started_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('ended_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('end_reason', sa.String(), nullable=False),
    sa.PrimaryKeyConstraint('job', 'attempt', name=op.f('pk_job_attempts'))
    )
    op.create_index(op.f('ix_job_attempts_started_at'), 'job_attempts', ['started_at'], unique=False)
    op.create_table('job_nodes',
    sa.Column('job', sa.String(), nullable=False),
    sa.Column('attempt', sa.String(), nullable=False),
    sa.Column('node', sa.String(), nullable=False),
    sa.Column('agent', sa.String(), nullable=False),
    sa.Column('ranks', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('left', sa.Boolean(), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('job', 'attempt', 'node', name=op.f('pk_job_nodes'))
    )
    op.create_table('job_communicators',
    sa.Column('job', sa.String(), nullable=False),
    sa.Column('attempt', sa.String(), nullable=False),
    sa.Column('communicator', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('ranks', sa.String(), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('instance', sa.BigInteger(), nullable=False),
    sa.Column('shard', sa.BigInteger(), nullable=False),
    sa.Column('backend', sa.String(), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('ring', sa.String(), nullable=False),
    sa.Column('tree', sa.String(), nullable=False),
    sa.Column('closed', sa.Boolean(), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('job', 'attempt', 'communicator', name=op.f('pk_job_communicators'))
    )


def _create_incidents() -> None:
    op.create_table('incidents',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('number', sa.BigInteger(), sa.Identity(always=True), nullable=False),
    sa.Column('job', sa.String(), nullable=False),
    sa.Column('attempt', sa.String(), nullable=False),
    sa.Column('episode', sa.String(), nullable=False),
    sa.Column('status', sa.String(), nullable=False),
    sa.Column('severity', sa.String(), nullable=False),
    sa.Column('verdict_class', sa.String(), nullable=False),
    sa.Column('sub_reason', sa.String(), nullable=False),
    sa.Column('summary', sa.String(), nullable=False),
    sa.Column('verdict', sa.JSON(), nullable=False),
    sa.Column('verdict_id', sa.String(), nullable=False),
    sa.Column('revision', sa.BigInteger(), nullable=False),
    sa.Column('root_key', sa.String(), nullable=False),
    sa.Column('stalled_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('opened_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('acknowledged_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('acknowledged_by', sa.String(), nullable=True),
    sa.Column('resolved_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('resolved_by', sa.String(), nullable=True),
    sa.Column('resolution', sa.String(), nullable=False),
    sa.Column('reopened_count', sa.BigInteger(), nullable=False),
    sa.Column('version', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_incidents')),
    sa.UniqueConstraint('number', name=op.f('uq_incidents_number'))
    )
    op.create_index('ix_incidents_job_attempt_status', 'incidents', ['job', 'attempt', 'status'], unique=False)
    op.create_index('ix_incidents_opened_at_id', 'incidents', ['opened_at', 'id'], unique=False)
    op.create_index(op.f('ix_incidents_verdict_class'), 'incidents', ['verdict_class'], unique=False)
    op.create_table('incident_episodes',
    sa.Column('job', sa.String(), nullable=False),
    sa.Column('attempt', sa.String(), nullable=False),
    sa.Column('episode', sa.String(), nullable=False),
    sa.Column('incident_id', sa.String(), nullable=False),
    sa.Column('revision', sa.BigInteger(), nullable=False),
    sa.Column('cleared_at', sa.DateTime(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['incident_id'], ['incidents.id'], name=op.f('fk_incident_episodes_incident_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('job', 'attempt', 'episode', name=op.f('pk_incident_episodes'))
    )
    op.create_index(op.f('ix_incident_episodes_incident_id'), 'incident_episodes', ['incident_id'], unique=False)
    op.create_table('verdicts',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('incident_id', sa.String(), nullable=True),
    sa.Column('job', sa.String(), nullable=False),
    sa.Column('attempt', sa.String(), nullable=False),
    sa.Column('episode', sa.String(), nullable=False),
    sa.Column('revision', sa.BigInteger(), nullable=False),
    sa.Column('resolved', sa.Boolean(), nullable=False),
    sa.Column('decision', sa.String(), nullable=False),
    sa.Column('verdict', sa.JSON(), nullable=False),
    sa.Column('stalled_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('judged_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('received_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['incident_id'], ['incidents.id'], name=op.f('fk_verdicts_incident_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_verdicts'))
    )
    op.create_index(op.f('ix_verdicts_incident_id'), 'verdicts', ['incident_id'], unique=False)
    op.create_index(op.f('ix_verdicts_received_at'), 'verdicts', ['received_at'], unique=False)


def _create_incident_records() -> None:
    op.create_table('evidence_bundles',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('incident_id', sa.String(), nullable=False),
    sa.Column('verdict_id', sa.String(), nullable=False),
    sa.Column('revision', sa.BigInteger(), nullable=False),
    sa.Column('bytes_count', sa.BigInteger(), nullable=False),
    sa.Column('sha256', sa.String(), nullable=False),
    sa.Column('data', sa.LargeBinary(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['incident_id'], ['incidents.id'], name=op.f('fk_evidence_bundles_incident_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_evidence_bundles'))
    )
    op.create_index('ix_evidence_bundles_created_at_id', 'evidence_bundles', ['created_at', 'id'], unique=False)
    op.create_index(op.f('ix_evidence_bundles_incident_id'), 'evidence_bundles', ['incident_id'], unique=False)
    op.create_table('timeline_entries',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=True), nullable=False),
    sa.Column('incident_id', sa.String(), nullable=False),
    sa.Column('at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('kind', sa.String(), nullable=False),
    sa.Column('actor', sa.String(), nullable=False),
    sa.Column('actor_type', sa.String(), nullable=False),
    sa.Column('source', sa.String(), nullable=False),
    sa.Column('message', sa.String(), nullable=False),
    sa.Column('details', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.ForeignKeyConstraint(['incident_id'], ['incidents.id'], name=op.f('fk_timeline_entries_incident_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_timeline_entries'))
    )
    op.create_index(op.f('ix_timeline_entries_incident_id'), 'timeline_entries', ['incident_id'], unique=False)
    op.create_table('outbox',
    sa.Column('sequence', sa.BigInteger(), sa.Identity(always=True), nullable=False),
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('type', sa.String(), nullable=False),
    sa.Column('topic', sa.String(), nullable=False),
    sa.Column('key', sa.String(), nullable=False),
    sa.Column('job', sa.String(), nullable=False),
    sa.Column('incident_id', sa.String(), nullable=True),
    sa.Column('summary', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('payload', sa.String(), nullable=False),
    sa.Column('traceparent', sa.String(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('published_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('sequence', name=op.f('pk_outbox')),
    sa.UniqueConstraint('id', name=op.f('uq_outbox_id'))
    )
    op.create_index(op.f('ix_outbox_created_at'), 'outbox', ['created_at'], unique=False)
    op.create_index('ix_outbox_unpublished', 'outbox', ['sequence'], unique=False, postgresql_where=sa.text('published_at IS NULL'))


def _create_access() -> None:
    op.create_table('tokens',
    sa.Column('id', sa.String(), nullable=False),
    sa.Column('name', sa.String(), nullable=False),
    sa.Column('hash', sa.String(), nullable=False),
    sa.Column('hint', sa.String(), nullable=False),
    sa.Column('scopes', postgresql.ARRAY(sa.Text()), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('created_by', sa.String(), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_tokens')),
    sa.UniqueConstraint('hash', name=op.f('uq_tokens_hash'))
    )
    op.create_table('sessions',
    sa.Column('hash', sa.String(), nullable=False),
    sa.Column('token_id', sa.String(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['token_id'], ['tokens.id'], name=op.f('fk_sessions_token_id'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('hash', name=op.f('pk_sessions'))
    )
    op.create_index(op.f('ix_sessions_expires_at'), 'sessions', ['expires_at'], unique=False)
    op.create_index(op.f('ix_sessions_token_id'), 'sessions', ['token_id'], unique=False)
    op.create_table('idempotency_keys',
    sa.Column('token_id', sa.String(), nullable=False),
    sa.Column('key', sa.String(), nullable=False),
    sa.Column('fingerprint', sa.String(), nullable=False),
    sa.Column('resource_id', sa.String(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('token_id', 'key', name=op.f('pk_idempotency_keys'))
    )
    op.create_index(op.f('ix_idempotency_keys_created_at'), 'idempotency_keys', ['created_at'], unique=False)
    op.create_table('audit_entries',
    sa.Column('id', sa.BigInteger(), sa.Identity(always=True), nullable=False),
    sa.Column('at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('actor', sa.String(), nullable=False),
    sa.Column('actor_type', sa.String(), nullable=False),
    sa.Column('source', sa.String(), nullable=False),
    sa.Column('action', sa.String(), nullable=False),
    sa.Column('target_type', sa.String(), nullable=False),
    sa.Column('target_id', sa.String(), nullable=False),
    sa.Column('details', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('previous_hash', sa.String(), nullable=False),
    sa.Column('hash', sa.String(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_audit_entries'))
    )
    op.create_index('ix_audit_entries_target_type_target_id', 'audit_entries', ['target_type', 'target_id'], unique=False)


def downgrade() -> None:
    op.drop_index(op.f('ix_verdicts_received_at'), table_name='verdicts')
    op.drop_index(op.f('ix_verdicts_incident_id'), table_name='verdicts')
    op.drop_table('verdicts')
    op.drop_index(op.f('ix_timeline_entries_incident_id'), table_name='timeline_entries')
    op.drop_table('timeline_entries')
    op.drop_index(op.f('ix_sessions_token_id'), table_name='sessions')
    op.drop_index(op.f('ix_sessions_expires_at'), table_name='sessions')
    op.drop_table('sessions')
    op.drop_index(op.f('ix_incident_episodes_incident_id'), table_name='incident_episodes')
    op.drop_table('incident_episodes')
    op.drop_index(op.f('ix_evidence_bundles_incident_id'), table_name='evidence_bundles')
    op.drop_index('ix_evidence_bundles_created_at_id', table_name='evidence_bundles')
    op.drop_table('evidence_bundles')
    op.drop_table('tokens')
    op.drop_index('ix_outbox_unpublished', table_name='outbox', postgresql_where=sa.text('published_at IS NULL'))
    op.drop_index(op.f('ix_outbox_created_at'), table_name='outbox')
    op.drop_table('outbox')
    op.drop_index('ix_jobs_started_at_id', table_name='jobs')
    op.drop_table('jobs')
    op.drop_table('job_nodes')
    op.drop_table('job_communicators')
    op.drop_index(op.f('ix_job_attempts_started_at'), table_name='job_attempts')
    op.drop_table('job_attempts')
    op.drop_index(op.f('ix_incidents_verdict_class'), table_name='incidents')
    op.drop_index('ix_incidents_opened_at_id', table_name='incidents')
    op.drop_index('ix_incidents_job_attempt_status', table_name='incidents')
    op.drop_table('incidents')
    op.drop_index(op.f('ix_idempotency_keys_created_at'), table_name='idempotency_keys')
    op.drop_table('idempotency_keys')
    op.drop_index('ix_audit_entries_target_type_target_id', table_name='audit_entries')
    op.drop_table('audit_entries')
    op.execute("DROP FUNCTION paceline_audit_is_append_only()")
