"""The only room that touches Kafka and telemetry; agents and services stand on it.

Delivery is at least once: a consumer commits after its handler has returned, so handlers must
give the same result twice. Topics marked `loss_tolerant` never block their sender and drop the
oldest records, counted; sends to all other topics wait, bounded, for the broker's acknowledgment.
Nothing here fails or blocks at start because Kafka is away (docs/adr/0011-consumer-shell.md).
"""
