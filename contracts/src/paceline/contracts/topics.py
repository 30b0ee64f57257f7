"""Kafka topics: name, key, who writes, how it is kept (docs/adr/0002-topics.md)."""

from dataclasses import dataclass

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


@dataclass(frozen=True)
class Topic:
    """A topic and its settings; `partitions` is a default that a deployment may raise."""

    name: str
    partitions: int
    compacted: bool
    retention_ms: int
    key: str
    loss_tolerant: bool  # producers of such topics drop oldest when Kafka is away

    @property
    def config(self) -> dict[str, str]:
        """Broker-side topic configuration."""
        if self.compacted:
            return {"cleanup.policy": "compact", "max.message.bytes": "1048576"}
        return {"retention.ms": str(self.retention_ms), "max.message.bytes": "1048576"}


JOBS = Topic("paceline.jobs.v1", 8, True, 0, "job | job:node | job:communicator | job:member:ID", False)
FRAMES = Topic("paceline.frames.v1", 16, False, 60 * MINUTE_MS, "job:shard", True)
HEALTH = Topic("paceline.health.v1", 8, False, 7 * DAY_MS, "job | node", False)
SIGNALS = Topic("paceline.signals.v1", 8, False, DAY_MS, "job", True)
DETECTOR_STATE = Topic("paceline.detector-state.v1", 8, True, 0, "job:attempt:shard:chunk", False)
VERDICTS = Topic("paceline.verdicts.v1", 8, False, 7 * DAY_MS, "job", False)
FINDINGS = Topic("paceline.findings.v1", 8, False, DAY_MS, "job", True)
INCIDENTS = Topic("paceline.incidents.v1", 8, False, 7 * DAY_MS, "job", False)
COMMANDS = Topic("paceline.commands.v1", 8, False, DAY_MS, "node", False)
COMMAND_RESULTS = Topic("paceline.command-results.v1", 8, False, 7 * DAY_MS, "job", False)
EVIDENCE = Topic("paceline.evidence.v1", 8, False, 6 * 60 * MINUTE_MS, "command", False)
DEAD_LETTERS = Topic("paceline.dead-letters.v1", 4, False, 7 * DAY_MS, "source topic", False)

TOPICS = (
    JOBS,
    FRAMES,
    HEALTH,
    SIGNALS,
    DETECTOR_STATE,
    VERDICTS,
    FINDINGS,
    INCIDENTS,
    COMMANDS,
    COMMAND_RESULTS,
    EVIDENCE,
    DEAD_LETTERS,
)
