"""What waits for Kafka in the detector."""

from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.detector import app as app_module
from paceline.detector.app import DetectorApp, Durable
from paceline.detector.settings import DetectorSettings


async def test_a_flood_of_snapshots_costs_no_heartbeat_event() -> None:
    app = DetectorApp(DetectorSettings())
    for number in range(app_module.DURABLE_QUEUE_MAX + 1):
        app._enqueue(Durable(state_key=f"s{number}", state=b""))
    assert app.dropped_durable == 1
    event = HealthEvent("h1", HealthKind.HEARTBEAT_LOST, "n", "j", "a1", None, None, 1.0)
    app._enqueue(Durable(event=event))
    assert app.dropped_durable == 1
