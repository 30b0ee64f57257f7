"""A window of iterations on a real Kafka becomes a finding, and garbage of that kind a dead letter."""

import secrets
from collections.abc import Sequence
from typing import Any

from paceline.contracts.batch import encode_batch
from paceline.contracts.scaling import ScalingRecord
from paceline.contracts.topics import FINDINGS, SIGNALS
from paceline.localizer import LocalizerApp, LocalizerSettings
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord, Record
from tests.unit.localizer.test_localizer_scaling import window

WAIT_S = 45


async def test_a_window_becomes_a_finding_and_no_verdict(
    settings: LocalizerSettings, producer: Producer, ear: Any, eventually: Any
) -> None:
    job = f"job-{secrets.token_hex(4)}"
    found: list[ScalingRecord] = []

    async def hear(records: Sequence[Record]) -> Sequence[BadRecord]:
        found.extend(decode_event(ScalingRecord, record.headers, record.value)[1] for record in records)
        return ()

    options = ConsumerOptions(start=Start.LATEST, poll_s=0.05)
    findings = Consumer(
        settings.kafka, [FINDINGS], None, hear, producer=None, name="findings", options=options
    )
    app = LocalizerApp(settings)
    await findings.start()
    await app.start()
    try:

        async def heard() -> list[ScalingRecord]:
            # the reader begins at the end of the topic: the next window is for it
            seq = heard.seq = getattr(heard, "seq", 0) + 1  # type: ignore[attr-defined]
            await producer.send(SIGNALS, job, encode_batch(window(seq, job=job)))
            return [record for record in found if record.job == job]

        (first, *_) = await eventually(heard, WAIT_S)
        assert (first.iterations, first.ranks, first.refused) == (50, 8, "")
        assert ear.of(job) == []
    finally:
        await app.stop()
        await findings.stop()
