"""The main job as a person sees it: a real job, a real fault, an incident that appears in a browser.

The browser shows the empty list before the fault; the incident must appear in the same page load. The
screenshots stay in `.paceline/screens` to be looked at.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.lab.platform import free_port

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / ".paceline" / "screens"
WATCH = ROOT / "web" / "e2e" / "watch-incident.mjs"
CHROMIUM = os.environ.get("PACELINE_CHROMIUM", "/usr/bin/chromium")
RANK = 5
STOP_S_MAX = 60
LINE_S_MAX = 150
POLL_S = 0.1

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.timeout(420),
    pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"{CHROMIUM} is not installed"),
]


class Demo:
    """`paceline demo` in a process of its own; its output goes to a file."""

    def __init__(self, home: Path, output: Path) -> None:
        command = [
            sys.executable, "-m", "paceline.contracts.cli", "demo",
            "--fault", "h1", "--rank", str(RANK), "--warmup", "25",
            "--home", str(home), "--port", str(free_port(0)),
        ]  # fmt: skip
        self.output = output
        with output.open("wb") as stream:
            self.process = subprocess.Popen(command, stdout=stream, start_new_session=True)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that matches; fails where none comes within LINE_S_MAX."""
        deadline = time.monotonic() + LINE_S_MAX
        while True:
            text = self.output.read_text()
            found = re.search(pattern, text, re.MULTILINE)
            if found:
                return found
            assert self.process.poll() is None, f"the demo ended without {pattern!r}:\n{text}"
            assert time.monotonic() < deadline, f"no line like {pattern!r} from the demo:\n{text}"
            time.sleep(POLL_S)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise


@pytest.fixture
def demo(lab_home: Path, tmp_path: Path) -> Iterator[Demo]:
    running = Demo(lab_home / "console", tmp_path / "demo.txt")
    yield running
    running.stop()


def processes_below(home: Path) -> list[str]:
    """Command lines and environments of live processes that name `home`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(home).encode() in text:
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_an_incident_appears_without_reload(demo: Demo, lab_home: Path) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    where = demo.wait_for(r"console\s+(http://\S+)\s+token (\S+)")
    browser = subprocess.Popen(
        ["node", str(WATCH), where[1], where[2], str(SCREENS)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert browser.stdout is not None
        assert browser.stdout.readline() == "watching\n"
        verdict = demo.wait_for(r"^H1  (rank \d+ never entered .*) -> INC-1 (\S+)")
        output, _ = browser.communicate(timeout=180)
    finally:
        browser.kill()
        browser.wait()
    assert browser.returncode == 0
    seen = json.loads(output)
    assert seen["sameLoad"] is True
    assert seen["summary"] == verdict[1]
    assert f"rank {RANK} " in seen["summary"]
    assert verdict[2].startswith(f"{where[1]}/incidents/")
    assert seen["problems"] == []
    assert seen["violations"] == []
    assert [Path(screen["path"]).stat().st_size > 10_000 for screen in seen["screens"]] == [True] * 4
    assert [screen["overflow"] for screen in seen["screens"]] == [0] * 4
    assert demo.stop() == 0
    assert processes_below(lab_home / "console") == []
