import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator

import pytest

from paceline.runtime.app import BackgroundTasks, Readiness
from paceline.runtime.health import HealthServer
from paceline.runtime.metrics import count, gauge, observe
from paceline.runtime.runner import AppFailed, checks_of, run_apps
from paceline.runtime.settings import HttpSettings, TelemetrySettings
from paceline.runtime.telemetry import configure_telemetry, current_traceparent, span

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class FakeApp:
    """Records what is done to it; `fail_on` breaks a step."""

    def __init__(self, name: str, log: list[str], fail_on: str = "") -> None:
        self.name = name
        self.log = log
        self.fail_on = fail_on
        self.tasks = BackgroundTasks()

    async def start(self) -> None:
        self.log.append(f"start {self.name}")
        if self.fail_on == "start":
            raise OSError("port 1 is taken")
        if self.fail_on == "later":
            self.tasks.spawn("work", self._die())

    async def stop(self) -> None:
        self.log.append(f"stop {self.name}")
        if self.fail_on == "stop":
            await asyncio.Event().wait()

    async def crashed(self) -> BaseException:
        return await self.tasks.crashed()

    async def _die(self) -> None:
        raise KeyError("bug")


async def test_apps_start_in_order_and_stop_in_reverse() -> None:
    log: list[str] = []
    stop, started = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(
        run_apps([FakeApp("a", log), FakeApp("b", log)], stop=stop, on_started=started)
    )
    await asyncio.wait_for(started.wait(), 5)
    stop.set()
    await asyncio.wait_for(running, 5)
    assert log == ["start a", "start b", "stop b", "stop a"]


async def test_sigterm_stops_in_order() -> None:
    log: list[str] = []
    started = asyncio.Event()
    running = asyncio.create_task(run_apps([FakeApp("a", log)], on_started=started))
    await asyncio.wait_for(started.wait(), 5)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 5)
    assert log == ["start a", "stop a"]


async def test_an_app_that_does_not_start_stops_the_others_and_is_named() -> None:
    log: list[str] = []
    with pytest.raises(AppFailed, match="b did not start: OSError: port 1 is taken"):
        await run_apps([FakeApp("a", log), FakeApp("b", log, "start"), FakeApp("c", log)])
    assert log == ["start a", "start b", "stop b", "stop a"]


async def test_a_crash_of_one_app_ends_the_process_with_its_name() -> None:
    log: list[str] = []
    with pytest.raises(AppFailed, match="b crashed: KeyError: 'bug'"):
        await asyncio.wait_for(run_apps([FakeApp("a", log), FakeApp("b", log, "later")]), 5)
    assert log[-2:] == ["stop b", "stop a"]


async def test_an_app_that_does_not_stop_is_left_behind() -> None:
    log: list[str] = []
    stop = asyncio.Event()
    stop.set()
    await asyncio.wait_for(
        run_apps([FakeApp("a", log), FakeApp("b", log, "stop")], stop=stop, stop_s_max=0.1), 5
    )
    assert log[-2:] == ["stop b", "stop a"]


class Doubtful(FakeApp):
    ready = False

    def readiness(self) -> Readiness:
        return Readiness(self.ready, "" if self.ready else "no connection to Kafka")


@pytest.fixture
async def server() -> AsyncIterator[tuple[HealthServer, Doubtful]]:
    app = Doubtful("localizer", [])
    telemetry = configure_telemetry(TelemetrySettings(), "test")
    checks = checks_of([app, FakeApp("plain", [])])
    made = HealthServer(HttpSettings(request_timeout_s=0.3), checks, telemetry.scrape)
    await made.start()
    yield made, app
    await made.stop()


async def ask(port: int, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split(b" ")[1]) if head else 0), body


async def get(port: int, path: str) -> tuple[int, bytes]:
    return await ask(port, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())


async def test_alive_and_ready(server: tuple[HealthServer, Doubtful]) -> None:
    health, app = server
    assert (await get(health.port, "/healthz"))[0] == 200
    status, body = await get(health.port, "/readyz")
    assert status == 503
    assert json.loads(body)["apps"] == {
        "localizer": {"ready": False, "detail": "no connection to Kafka"},
        "plain": {"ready": True, "detail": ""},
    }
    app.ready = True
    assert (await get(health.port, "/readyz?verbose"))[0] == 200


async def test_metrics_have_units_and_totals(server: tuple[HealthServer, Doubtful]) -> None:
    count("paceline.incidents.opened", verdict="H1")
    gauge("paceline.detector.jobs", 3)
    observe("paceline.detection.latency", 7.5)
    status, body = await get(server[0].port, "/metrics")
    text = body.decode()
    assert status == 200
    assert 'paceline_incidents_opened_total{verdict="H1"} 1.0' in text
    assert "paceline_detector_jobs 3.0" in text
    assert "paceline_detection_latency_seconds_bucket" in text


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /secrets HTTP/1.1\r\n\r\n", 404),
        (b"POST /healthz HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 405),
        (b"garbage\r\n\r\n", 400),
        (b"\xff\xfe\x00 / HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n", 0),  # never finished: closed after the timeout
    ],
)
async def test_strange_requests_get_a_short_answer(
    server: tuple[HealthServer, Doubtful], request_bytes: bytes, status: int
) -> None:
    try:
        answered, _ = await ask(server[0].port, request_bytes)
    except ConnectionResetError:  # the rest of an oversized request is not read
        answered = 400
    assert answered == status
    assert (await get(server[0].port, "/healthz"))[0] == 200


def test_spans_continue_the_trace_of_a_record() -> None:
    configure_telemetry(TelemetrySettings(), "test")
    assert current_traceparent() == ""
    with span("process verdict", traceparent=TRACE):
        inside = current_traceparent()
        with span("deliver"):
            assert current_traceparent().split("-")[1] == TRACE.split("-")[1]
    assert inside.split("-")[1] == TRACE.split("-")[1]
    assert inside != TRACE


@pytest.mark.parametrize("hostile", ["", "garbage", "00-zz-zz-01", "x" * 10_000])
def test_a_broken_traceparent_begins_a_new_trace(hostile: str) -> None:
    configure_telemetry(TelemetrySettings(), "test")
    with span("process", traceparent=hostile):
        assert current_traceparent().startswith("00-")


def test_errors_inside_a_span_pass_through() -> None:
    with pytest.raises(KeyError), span("process"):
        raise KeyError("bug")
