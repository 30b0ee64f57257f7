"""The plugin, the page and the harness under ThreadSanitizer: many threads, late calls, changing detail."""

from pathlib import Path

import pytest

from paceline.contracts.codes import DetailLevel
from tests.unit.nccl.calls import PROXY, SEND_WAIT, Trace
from tests.unit.nccl.conftest import DRIVER, SANITIZER, NcclProcess, build_driver, races_in, watch_races
from tests.unit.nccl.test_nccl_marker import ALLOWED, CAPTURING, EVERYTHING, QUEUED, Driver, call

FULL = {"PACELINE_NCCL_TIER": "2", "PACELINE_NCCL_BUDGET_PERCENT": "100"}


@pytest.mark.parametrize("version", [4, 7])
def test_no_race_between_threads_and_communicators(sanitized: Path, tmp_path: Path, version: int) -> None:
    options = {**watch_races(tmp_path), **FULL}
    with NcclProcess(sanitized / "plugin.so", sanitized / "harness", version, options) as process:
        pid = process.process.pid
        trace = Trace(min(version, 5))
        contexts = [trace.init(hash_=number) for number in range(3)]
        process.make(trace)
        assert process.process.stdin is not None
        for turn in range(2):  # a race is one whenever it has happened: order counts, not how often
            lines: list[str] = []
            for number, context in enumerate(contexts):
                for _ in range(10):
                    trace.run(context, steps=2)
                lines += [f"{number}{line}" for line in trace.take().lines(pid).splitlines()]
            process.request(DetailLevel.ROUNDS if turn % 2 else DetailLevel.FULL)
            process.process.stdin.write("\n".join(lines) + "\n")
            process.read()
            assert process.ask("sync") == "ok 0"
        late = trace.enter(contexts[0])
        trace.begin_task(late, channels=1)
        proxy = trace.append_proxy(late, 0, 1, is_send=True)
        trace.end_task(late)
        step = trace.step(proxy, 0, is_send=True, upto=SEND_WAIT)
        trace.finalize(contexts[0])  # on the user's thread, while the proxy's goes on
        trace.stop(PROXY, step)
        trace.stop(PROXY, proxy)
        process.make(trace)
        snapshot = process.read()
        assert snapshot.frames["started"].tolist() == [21, 20, 20]
        assert snapshot.process["nccl_dropped"] == 0
        assert process.end() == 0
    assert not races_in(tmp_path), races_in(tmp_path)


def test_no_race_between_marks_and_calls(sanitized: Path, tmp_path: Path) -> None:
    """The GPU writes into the frames while three threads call, are looked at, lose their marks and close."""
    assert build_driver(tmp_path / DRIVER, *SANITIZER) == ""
    driver = Driver(tmp_path / DRIVER, tmp_path / "words")
    options = {**watch_races(tmp_path), **driver.environment}  # tier 0: nothing but the marks shows an end
    with NcclProcess(sanitized / "plugin.so", sanitized / "harness", 7, options) as process:
        trace = Trace()
        contexts = [trace.init(hash_=number) for number in range(3)]
        process.make(trace)

        def run(rounds: int) -> None:
            lines: list[str] = []
            for number, context in enumerate(contexts):
                for _ in range(rounds):
                    call(trace, context)
                lines += [f"{number}{line}" for line in trace.take().lines(process.process.pid).splitlines()]
            assert process.process.stdin is not None
            process.process.stdin.write("\n".join(lines) + "\n")
            process.read()
            assert process.ask("sync") == "ok 0"

        run(10)
        assert driver.words[QUEUED] == 2 * 10 * 3
        driver.settle()
        driver.words[ALLOWED] = driver.words[QUEUED] + 5  # the stream stands, the host goes on
        run(5)
        assert (process.read().frames["gpu_tag"] != 0).all()
        driver.words[CAPTURING] = 1  # marks off in three threads, some of their writes are still to come
        driver.words[ALLOWED] = EVERYTHING
        run(2)
        assert process.read().process["nccl_marks_off"] == 3
        for context in contexts:
            trace.finalize(context)
        again = [trace.init(hash_=0x10 + number) for number in range(3)]
        driver.words[CAPTURING] = 0
        process.make(trace)
        contexts[:] = again
        run(3)
        for context in contexts:
            trace.finalize(context)  # with the GPU on its way
        process.make(trace)
        driver.settle()
        assert process.read().process["nccl_dropped"] == 0
        assert process.end() == 0
    assert not races_in(tmp_path), races_in(tmp_path)
