"""Tells people and machines about incidents: Alertmanager and signed webhooks.

    incidents.v1 -> [severity -> dedup -> alert -> webhooks -> record] -> deliveries (PostgreSQL)
    deliveries   -> [claim -> send -> decide -> record], again until settled

Intake (`intake.py`) turns one incident event into at most one delivery for each receiver, in one
transaction, and commits the Kafka offset after it: a replayed event changes nothing. The dispatcher
(`dispatcher.py`) takes due rows with `FOR UPDATE SKIP LOCKED` and a lease, so that several
notifiers share the work and a killed one loses nothing; a receiver may see a message twice, with
the same `webhook-id`. A slow receiver holds only its own few slots. The log is kept for
`log_days_max` days (docs/adr/0014-notifications.md).
"""

from paceline.notifier.app import NotifierApp
from paceline.notifier.settings import NotifierSettings

__all__ = ["NotifierApp", "NotifierSettings"]
