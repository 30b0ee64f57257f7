"""NVML as a JSON file tells it (`FAKE_NVML`), read at every call: only getters exist.

`{"gpus": [{"busy": 100, ...}], "hang": 1, "hang_at": CALL, "lost": 0, "xids": [[0, 79]]}`.
"""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_xids_told = 0


class NVMLError(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def _world() -> Any:
    return json.loads(Path(os.environ["FAKE_NVML"]).read_text())


def _of(handle: Any, name: Any) -> Any:
    world = _world()
    if world.get("hang") == handle and world.get("hang_at", name) == name:
        while True:  # as a call does whose GPU has no processor to answer any more
            time.sleep(3600)
    if world.get("lost") == handle and name != "nvmlDeviceGetHandleByIndex":
        raise NVMLError(15)
    return world["gpus"][handle]


def _value(handle: Any, caller: Any, key: Any) -> Any:
    gpu = _of(handle, caller)
    if key not in gpu:
        raise NVMLError(3)
    return gpu[key]


def nvmlInit() -> None:
    world = _world()
    if world.get("hang") == "init":
        time.sleep(3600)
    if "no_driver" in world:
        raise NVMLError(9)


def nvmlDeviceGetCount() -> Any:
    return len(_world()["gpus"])


def nvmlSystemGetDriverVersion() -> Any:
    return "999.1"


def nvmlDeviceGetHandleByIndex(index: Any) -> Any:
    _of(index, "nvmlDeviceGetHandleByIndex")
    return index


def nvmlDeviceGetIndex(handle: Any) -> Any:
    return handle


def nvmlDeviceGetName(handle: Any) -> Any:
    return "H200"


def nvmlDeviceGetPciInfo(handle: Any) -> Any:
    return SimpleNamespace(busId=f"00000000:{0x9B + handle:02X}:00.0".encode())


def nvmlDeviceGetUtilizationRates(handle: Any) -> Any:
    gpu = _of(handle, "nvmlDeviceGetUtilizationRates")
    return SimpleNamespace(gpu=gpu.get("busy", 0), memory=gpu.get("memory", 0))


def nvmlDeviceGetPowerUsage(handle: Any) -> Any:
    return _value(handle, "nvmlDeviceGetPowerUsage", "power")


def nvmlDeviceGetEnforcedPowerLimit(handle: Any) -> Any:
    return 700_000


def nvmlDeviceGetClockInfo(handle: Any, kind: Any) -> Any:
    return 1980


def nvmlDeviceGetMaxClockInfo(handle: Any, kind: Any) -> Any:
    return 1980


def nvmlDeviceGetTemperature(handle: Any, sensor: Any) -> Any:
    return 40


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: Any) -> Any:
    return _of(handle, "nvmlDeviceGetCurrentClocksThrottleReasons").get("throttle", 0)


def nvmlDeviceGetTotalEccErrors(handle: Any, kind: Any, counter: Any) -> Any:
    assert (kind, counter) == (1, 0)
    return _value(handle, "nvmlDeviceGetTotalEccErrors", "ecc")


def nvmlDeviceGetFieldValues(handle: Any, fields: Any) -> Any:
    gpu = _of(handle, "nvmlDeviceGetFieldValues")
    known = gpu.get("fields", {})
    return [
        SimpleNamespace(
            fieldId=field,
            nvmlReturn=0 if str(field) in known else 3,
            valueType=3,
            value=SimpleNamespace(ullVal=known.get(str(field), 0)),
        )
        for field in fields
    ]


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> Any:
    return [SimpleNamespace(pid=pid) for pid in _of(handle, "processes").get("pids", [])]


def nvmlEventSetCreate() -> Any:
    return object()


def nvmlDeviceRegisterEvents(handle: Any, kinds: Any, events: Any) -> None:
    assert kinds == 8


def nvmlEventSetWait_v2(events: Any, timeout_ms: Any) -> Any:
    global _xids_told
    xids = _world().get("xids", [])
    if _xids_told < len(xids):
        device, code = xids[_xids_told]
        _xids_told += 1
        return SimpleNamespace(device=device, eventType=8, eventData=code)
    time.sleep(timeout_ms / 1000)
    raise NVMLError(10)
