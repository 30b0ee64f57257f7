"""Asks NVML, in a process of its own: `python -m paceline.agent.gpu_reader --interval-s 5`.

Writes one JSON object a line and says before each GPU that it asks it, so that who reads knows which one
does not answer. Only getters and the wait for events are called. Reads nothing else and keeps nothing.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml

GPUS_MAX = 64
PIDS_MAX = 64
EVENTS_MAX = 64  # of one interval; the kernel's log has the others
# NVML's numbers: older bindings do not name all of them.
FIELDS = {59: "nvlink_recoveries", 145: "remap_failures", 214: "nvlink_failures", 230: "recovery_action"}
ECC_UNCORRECTED, ECC_VOLATILE = 1, 0
CLOCK_SM = 1
XID_EVENT = 8
LOST = 15  # NVML_ERROR_GPU_IS_LOST
NO_DRIVER = (9, 12)  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
TIMED_OUT = 10
NO_WAIT = (1, 3, 4)  # uninitialised, not supported, no permission: events cannot be waited for
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def run(interval_s: float, skipped: frozenset[int]) -> None:
    """Until the process is killed, or NVML itself says no; may block for as long as the driver likes."""
    tell(kind="asking", gpu=None)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        tell(kind="end", status="no_driver" if error.value in NO_DRIVER else "error", detail=str(error)[:300])
        return
    try:
        handles = _greet(skipped)
        events = _register(handles)
        while True:
            for index, handle in handles.items():
                tell(kind="asking", gpu=index)
                tell(**sample(index, handle))
            tell(kind="round")
            _wait(events, handles, interval_s)
    except pynvml.NVMLError as error:
        tell(kind="end", status="error", detail=str(error)[:300])


def _greet(skipped: frozenset[int]) -> dict[int, Any]:
    handles, gpus = {}, []
    for index in range(min(int(pynvml.nvmlDeviceGetCount()), GPUS_MAX)):
        if index in skipped:
            continue
        tell(kind="asking", gpu=index)
        try:
            handles[index] = handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(
                {
                    "index": index,
                    "name": _text(pynvml.nvmlDeviceGetName(handle)),
                    "pci": _text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
                }
            )
        except pynvml.NVMLError as error:
            handles.pop(index, None)
            tell(kind="lost" if error.value == LOST else "unread", gpu=index, detail=str(error)[:300])
    tell(kind="hello", driver=_text(pynvml.nvmlSystemGetDriverVersion()), gpus=gpus)
    return handles


def _register(handles: dict[int, Any]) -> Any:
    """A set of events to wait for, None where this driver has none."""
    try:
        events = pynvml.nvmlEventSetCreate()
    except pynvml.NVMLError:
        return None
    registered = 0
    for index, handle in handles.items():
        tell(kind="asking", gpu=index)
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, events)
            registered += 1
        except pynvml.NVMLError:
            continue  # the kernel's log still has its Xids
    return events if registered else None


def _wait(events: Any, handles: dict[int, Any], interval_s: float) -> None:
    until = time.monotonic() + interval_s
    told = 0
    while (left := until - time.monotonic()) > 0:
        if events is None or told >= EVENTS_MAX:
            time.sleep(left)
            return
        try:
            data = pynvml.nvmlEventSetWait_v2(events, max(1, int(left * 1000)))
        except pynvml.NVMLError as error:
            if error.value == TIMED_OUT:
                return
            if error.value in NO_WAIT:
                events = None
                continue
            raise
        told += 1
        tell(kind="xid", gpu=_index_of(data.device, handles), code=int(data.eventData))


def _index_of(device: Any, handles: dict[int, Any]) -> int | None:
    try:
        index = int(pynvml.nvmlDeviceGetIndex(device))
    except pynvml.NVMLError:
        return None
    return index if index in handles else None


def sample(index: int, handle: Any) -> dict[str, object]:
    """What one GPU says of itself; None for what it does not support (in a MIG slice, on older boards)."""
    found: dict[str, object] = {"kind": "sample", "gpu": index}
    try:
        rates = _get(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        found["busy_percent"] = None if rates is None else int(rates.gpu)
        found["memory_percent"] = None if rates is None else int(rates.memory)
        found["power_mw"] = _get(lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle)))
        found["power_limit_mw"] = _get(lambda: int(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)))
        found["sm_mhz"] = _get(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM)))
        found["sm_mhz_max"] = _get(lambda: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, CLOCK_SM)))
        found["temperature_c"] = _get(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, 0)))
        found["throttle"] = _get(lambda: int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        found["ecc_uncorrected"] = _get(
            lambda: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, ECC_UNCORRECTED, ECC_VOLATILE))
        )
        found.update(_fields(handle))
        running = _get(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        found["pids"] = [int(process.pid) for process in running[:PIDS_MAX]]
    except pynvml.NVMLError as error:  # only that the GPU is lost
        return {"kind": "lost", "gpu": index, "detail": str(error)[:300]}
    return found


def _fields(handle: Any) -> dict[str, int | None]:
    found: dict[str, int | None] = dict.fromkeys(FIELDS.values())
    for value in _get(lambda: pynvml.nvmlDeviceGetFieldValues(handle, list(FIELDS))) or ():
        if value.nvmlReturn == 0 and 0 <= value.valueType < len(_VALUE_MEMBERS):
            found[FIELDS[int(value.fieldId)]] = int(getattr(value.value, _VALUE_MEMBERS[value.valueType]))
    return found


def _get(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value == LOST:
            raise
        return None


def _text(value: str | bytes) -> str:
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else value)[:128]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--interval-s", type=float, default=5.0)
    parser.add_argument("--skip", type=int, action="append", default=[])
    arguments = parser.parse_args()
    run(arguments.interval_s, frozenset(arguments.skip))


if __name__ == "__main__":
    main()
