"""What deploy/ names must exist: metrics, files, services, subcommands."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from paceline.agent.collecting import Answer
from paceline.lab.platform import SERVICES
from paceline.runtime import metrics

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\bpaceline_[a-z_]+")
LATER = re.compile(r"_(bucket|sum|count)$")


def _yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text())


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Every metric's name as Prometheus gets it, from the real exporter in a process of its own."""
    script = """
from typing import get_args
from opentelemetry import metrics as api
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
registry = CollectorRegistry()
api.set_meter_provider(MeterProvider([PrometheusMetricReader(registry=registry)]))
from paceline.runtime import metrics
for name in get_args(metrics.CounterName): metrics.count(name)
for name in get_args(metrics.GaugeName): metrics.gauge(name, 1)
for name in get_args(metrics.HistogramName): metrics.observe(name, 1)
print(generate_latest(registry).decode())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {
        LATER.sub("", line.partition("{")[0].split(" ")[0])
        for line in done.stdout.splitlines()
        if line[:1] != "#"
    }


def _expressions() -> Iterator[tuple[str, str]]:
    for group in _yaml(DEPLOY / "prometheus" / "rules.yml")["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for path in (DEPLOY / "grafana" / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield panel["title"], target["expr"]


def test_rules_and_dashboards_name_only_metrics_that_exist(exported: set[str]) -> None:
    used = {(where, LATER.sub("", name)) for where, text in _expressions() for name in METRIC.findall(text)}

    assert len(used) > 15
    assert {(where, name) for where, name in used if name not in exported} == set()


def _agent_alerts() -> Iterator[tuple[str, bool, re.Pattern[str]]]:
    """(alert, whether it wants what fits the pattern, pattern of reasons)."""
    for where, text in _expressions():
        for match in re.finditer(r'paceline_agent_dropped_total\{reason(=~|!~)"([^"]+)"\}', text):
            yield where, match[1] == "=~", re.compile(match[2])


def test_every_loss_of_an_agent_is_in_an_alert() -> None:
    matchers = [(wanted, pattern) for _, wanted, pattern in _agent_alerts()]
    sources = (ROOT / "agents" / "node" / "src" / "paceline" / "agent").glob("*.py")
    reasons = {
        reason.replace("{verdict.value}", "node_full")
        for path in sources
        for reason in re.findall(r'drops\[f?"([^"]+)"\]', path.read_text())
    }

    assert {"refused_node_full", "ring_disk_full", "memory_full"} <= reasons
    assert {
        reason: [bool(pattern.fullmatch(reason)) is wanted for wanted, pattern in matchers].count(True)
        for reason in reasons
    } == dict.fromkeys(reasons, 1)


def test_a_command_that_is_not_obeyed_is_no_lost_record() -> None:
    alerts = {
        answer: [
            where for where, wanted, pattern in _agent_alerts() if bool(pattern.fullmatch(reason)) is wanted
        ]
        for answer in Answer
        for reason in [f"command_{answer.value}"]
    }

    assert alerts[Answer.UNSIGNED] == alerts[Answer.BUSY] == ["PacelineAgentRefusesCommands"]
    assert alerts[Answer.DUPLICATE] == alerts[Answer.EXPIRED] == []  # an agent was restarted


def test_every_kind_of_metric_was_exported(exported: set[str]) -> None:
    declared = [get_args(kind) for kind in (metrics.CounterName, metrics.GaugeName, metrics.HistogramName)]
    for name in (name for names in declared for name in names):
        assert any(found.startswith(name.replace(".", "_")) for found in exported), name


def test_compose_file_fits_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_runs_every_service_once_and_names_only_files_that_exist() -> None:
    services = _yaml(ROOT / "docker-compose.yml")["services"]
    commands = [
        service["command"][-1] for service in services.values() if service.get("command", [""])[0] == "up"
    ]
    assert sorted(commands) == sorted(SERVICES)

    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_compose_publishes_nothing_beyond_loopback_by_default() -> None:
    services = _yaml(ROOT / "docker-compose.yml")["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]

    assert ports
    assert all(re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", port).startswith("127.0.0.1:") for port in ports)


def test_prometheus_scrapes_every_service() -> None:
    config = _yaml(DEPLOY / "prometheus" / "prometheus.yml")
    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]

    assert sorted(target.partition(":")[0] for target in targets) == sorted(SERVICES)


@pytest.mark.parametrize("name", ["platform", "agent"])
def test_images_copy_only_what_the_checkout_has(name: str) -> None:
    text = (DEPLOY / "images" / f"{name}.Dockerfile").read_text()
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]

    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
