"""One real Apache Kafka node (KRaft, broker and controller in one process) on loopback ports."""

import contextlib
import json
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path

from paceline.lab.jars import ensure_jars
from paceline.lab.java import JavaRuntime, find_java
from paceline.lab.ports import draw_ports, is_free
from paceline.lab.processes import LabError
from paceline.lab.server import LocalServer

HOST = "127.0.0.1"
FORMAT_TIMEOUT_S = 60.0
API_VERSIONS_KEY = 18

# Small and quick: one node needs no replicas, and the default 50-partition internal topics cost a second.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.network.threads=2
num.io.threads=2
background.threads=2
num.partitions=4
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=2
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=8388608
log.index.size.max.bytes=1048576
log.retention.check.interval.ms=60000
"""

LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = OUT
"""

JVM_OPTIONS = (
    "-Xms96m",
    "-Xmx384m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
)
JVM_OPTIONS_24 = (
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)  # else warnings


class LocalKafka(LocalServer):
    """A node whose data, log and pid file live below `home`; restarts keep port and data."""

    title = "Kafka"

    def __init__(self, home: Path, *, cache: Path | None = None) -> None:
        self.home = home / "kafka"
        super().__init__(self.home)
        self._cache = cache
        self._port = 0

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:PORT` once started."""
        return f"{HOST}:{self._port}"

    @property
    def address(self) -> str:
        return self.bootstrap

    def _launch(self) -> None:
        java = find_java()
        jars = ensure_jars(self._cache)
        self._configure()
        command = self._java_command(java, jars)
        self._make_data(command)
        self._child.start(
            [*command, "kafka.Kafka", str(self.home / "server.properties")],
            directory=self.home,
            death_signal=signal.SIGTERM,
        )

    def _answers(self) -> bool:
        """A broker answers ApiVersions only once it is unfenced."""
        return answers(HOST, self._port)

    def _configure(self) -> None:
        self._port, controller_port = self._choose_ports()
        text = PROPERTIES.format(
            host=HOST, port=self._port, controller_port=controller_port, data=self.home / "data"
        )
        (self.home / "server.properties").write_text(text)
        (self.home / "log4j2.properties").write_text(LOGGING)

    def _choose_ports(self) -> tuple[int, int]:
        """The ports of the last start while they are free, else new ones. A static voter lets them change."""
        path = self.home / "ports.json"
        with contextlib.suppress(OSError, ValueError, TypeError):
            port, controller_port = json.loads(path.read_text())
            if is_free(port) and is_free(controller_port):
                return port, controller_port
        port, controller_port = draw_ports(2)
        path.write_text(json.dumps([port, controller_port]))
        return port, controller_port

    def _java_command(self, java: JavaRuntime, jars: Sequence[Path]) -> list[str]:
        """`java` with its options in a file: 45 jars would fill every process list."""
        newer = JVM_OPTIONS_24 if java.major >= 24 else ()
        logging = f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}"
        options = [*JVM_OPTIONS, *newer, logging, "-cp", ":".join(map(str, jars))]
        path = self.home / "java.options"
        path.write_text("".join(f'"{option}"\n' for option in options))
        return [str(java.path), f"@{path}"]

    def reset(self) -> None:
        """Forget every topic and record; only while stopped."""
        if self.is_running:
            raise LabError("Kafka runs: stop it before its records are deleted")
        shutil.rmtree(self.home / "data", ignore_errors=True)

    def _make_data(self, java_command: Sequence[str]) -> None:
        """Formatted storage; a copy of the empty one is kept, for formatting costs a JVM start."""
        data, empty = self.home / "data", self.home / "empty"
        if (data / "meta.properties").exists():
            return
        shutil.rmtree(data, ignore_errors=True)
        if not (empty / "meta.properties").exists():
            self._format(java_command)
            shutil.rmtree(empty, ignore_errors=True)
            shutil.copytree(data, empty)
        else:
            shutil.copytree(empty, data)

    def _format(self, java_command: Sequence[str]) -> None:
        cluster = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "x")
        command = [*java_command, "kafka.tools.StorageTool", "format", "-t", cluster]
        command += ["-c", str(self.home / "server.properties"), "--ignore-formatted"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise LabError(
                f"Kafka's storage cannot be formatted:\n{(done.stdout + done.stderr).strip()[-2000:]}"
            )


def answers(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether a broker answers an ApiVersions request (version 0)."""
    client = b"paceline-lab"
    body = struct.pack(">hhih", API_VERSIONS_KEY, 0, 1, len(client)) + client
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(body)) + body)
            reply = connection.recv(10)
    except OSError:
        return False
    return len(reply) == 10 and struct.unpack(">iih", reply)[1:] == (1, 0)


def prepare() -> None:
    """Fetch what a start needs, so that `make setup` and not the first demo waits for it."""
    java = find_java()
    jars = ensure_jars()
    sys.stdout.write(f"Java {java.major} ({java.source}), {len(jars)} jars in {jars[0].parent}\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--prepare"]:
        sys.exit("usage: python -m paceline.lab.kafka --prepare")
    prepare()
