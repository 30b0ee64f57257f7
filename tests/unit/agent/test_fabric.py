"""Ports of RDMA devices: what changes mean, and sysfs as it is, half there, or away."""

from pathlib import Path
from typing import Any

import pytest

from paceline.agent.fabric import (
    ACTIVE,
    GONE,
    Port,
    judge_port,
    judge_ports,
    read_addresses,
    read_gpu_addresses,
    read_ports,
    remember_ports,
)
from paceline.contracts.registry import HealthKind

UP = Port(ACTIVE, 400.0, {"link_downed": 2, "symbol_error": 5, "port_rcv_errors": 0})
DOWN = Port("DOWN", 400.0, UP.counters)


def port(**changes: Any) -> Port:
    return Port(ACTIVE, changes.pop("rate", 400.0), {**UP.counters, **changes})


class TestDecision:
    @pytest.mark.parametrize(
        ("before", "now", "expected"),
        [
            (UP, UP, []),
            (None, DOWN, []),  # a port that is not in use
            (DOWN, DOWN, []),
            (UP, DOWN, [(HealthKind.LINK, "port_down")]),
            (UP, Port("INIT", 400.0, {}), [(HealthKind.LINK, "port_down")]),
            (DOWN, UP, [(HealthKind.LINK_BACK, "port_up")]),
            (UP, None, [(HealthKind.LINK, "port_gone")]),
            (DOWN, None, []),
            (UP, Port("", 0.0, {}), []),  # could not be read
            (UP, port(link_downed=3), [(HealthKind.LINK, "link_downed")]),
            (UP, port(rate=200.0), [(HealthKind.LINK_ERRORS, "rate_reduced")]),
            (UP, port(symbol_error=9), []),
            (UP, port(symbol_error=15), [(HealthKind.LINK_ERRORS, "port_errors")]),
            (UP, port(port_rcv_errors=500, symbol_error=900), [(HealthKind.LINK_ERRORS, "port_errors")]),
            (UP, port(symbol_error=0, link_downed=0), []),  # somebody cleared them
            (UP, port(local_link_integrity_errors=4), []),  # seen for the first time
            (port(local_link_integrity_errors=0), port(local_link_integrity_errors=1),
             [(HealthKind.LINK_ERRORS, "port_errors")]),
        ],
    )  # fmt: skip
    def test_changes(self, before: Port | None, now: Port | None, expected: list[Any]) -> None:
        assert [(each.kind, each.reason) for each in judge_port("mlx5_0/1", before, now)] == expected

    def test_a_device_that_vanishes_and_comes_back(self) -> None:
        known = {"mlx5_0/1": UP}
        assert [f.reason for f in judge_ports(known, {})] == ["port_gone"]
        known = remember_ports(known, {})
        assert known["mlx5_0/1"].state == GONE
        assert judge_ports(known, {}) == ()
        (back,) = judge_ports(known, {"mlx5_0/1": UP})
        assert (back.kind, back.device) == (HealthKind.LINK_BACK, "mlx5_0/1")

    def test_a_port_that_could_not_be_read_is_not_forgotten(self) -> None:
        assert remember_ports({"a/1": UP}, {"a/1": Port("", 0.0, {})}) == {"a/1": UP}


def write_port(root: Path, device: str, **files: str) -> Path:
    folder = root / "sys/class/infiniband" / device / "ports" / "1"
    for name, text in {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


class TestSysfs:
    def test_reads_states_rates_and_counters(self, tmp_path: Path) -> None:
        write_port(tmp_path, "mlx5_0", counters__symbol_error="12", hw_counters__local_ack_timeout_err="3",
                   counters__link_downed="not a number", counters__port_rcv_errors="-1")  # fmt: skip
        write_port(tmp_path, "mlx5_1", state="1: DOWN", rate="odd")
        assert read_ports(tmp_path) == {
            "mlx5_0/1": Port(ACTIVE, 400.0, {"symbol_error": 12, "local_ack_timeout_err": 3}),
            "mlx5_1/1": Port("DOWN", 0.0, {}),
        }

    def test_no_fabric_is_a_normal_case(self, tmp_path: Path) -> None:
        assert read_ports(tmp_path) == {}
        assert read_addresses(tmp_path) == {}
        assert read_gpu_addresses(tmp_path) == []

    def test_addresses_of_adapters_and_gpus(self, tmp_path: Path) -> None:
        write_port(tmp_path, "mlx5_0")
        device = tmp_path / "sys/devices/pci0000:38/0000:3B:00.0"
        device.mkdir(parents=True)
        (tmp_path / "sys/class/infiniband/mlx5_0/device").symlink_to(device)
        for name in ("0000:9c:00.0", "0000:1b:00.0", "module", "new_id"):
            (tmp_path / "sys/bus/pci/drivers/nvidia" / name).mkdir(parents=True)
        assert read_addresses(tmp_path) == {"0000:3b:00": "mlx5_0"}
        assert read_gpu_addresses(tmp_path) == ["0000:1b:00", "0000:9c:00"]
