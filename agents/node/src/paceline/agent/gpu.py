"""The GPUs of this machine, read by NVML in a process of its own: a driver that hangs hangs only that.

`python -m paceline.agent.gpu` prints one JSON object; a machine without a driver is a normal case.
"""

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from enum import Enum

GPUS_MAX = 64
OUTPUT_BYTES_MAX = 1 << 20


class GpuStatus(str, Enum):
    OK = "ok"
    NO_DRIVER = "no_driver"  # normal on a machine without a GPU
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    memory_bytes: int
    temperature_c: int | None
    utilization_percent: int | None


@dataclass(frozen=True)
class GpuReport:
    """What one reading found; `detail` explains every status but OK."""

    status: GpuStatus
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    detail: str = ""


async def read_gpus(timeout_s: float, command: tuple[str, ...] = ()) -> GpuReport:
    """One reading by a child process that is killed after `timeout_s`; never raises."""
    words = command or (sys.executable, "-m", "paceline.agent.gpu")
    try:
        child = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=OUTPUT_BYTES_MAX,
        )  # fmt: skip
    except OSError as error:
        return GpuReport(GpuStatus.ERROR, detail=f"cannot start the reader: {error}")
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await child.communicate()
    except TimeoutError:
        return GpuReport(GpuStatus.TIMEOUT, detail=f"NVML did not answer within {timeout_s:g} s")
    finally:
        if child.returncode is None:
            child.kill()
            # A child inside an uninterruptible driver call cannot be waited for.
            await asyncio.wait({asyncio.ensure_future(child.wait())}, timeout=1.0)
    return _parse(output[:OUTPUT_BYTES_MAX], child.returncode)


def _parse(output: bytes, returncode: int | None) -> GpuReport:
    try:
        raw = json.loads(output)
        return GpuReport(
            GpuStatus(raw["status"]),
            tuple(Gpu(**gpu) for gpu in raw["gpus"][:GPUS_MAX]),
            str(raw["driver"]),
            str(raw["detail"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        return GpuReport(GpuStatus.ERROR, detail=f"the reader ended with {returncode}: {error!r}")


def query() -> GpuReport:
    """Ask NVML here and now; may block for as long as the driver likes."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        status = GpuStatus.NO_DRIVER if error.value in missing else GpuStatus.ERROR
        return GpuReport(status, detail=str(error))
    try:
        count = min(int(pynvml.nvmlDeviceGetCount()), GPUS_MAX)
        gpus = tuple(_query_one(index) for index in range(count))
        return GpuReport(GpuStatus.OK, gpus, str(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError as error:
        return GpuReport(GpuStatus.ERROR, detail=str(error))
    finally:
        pynvml.nvmlShutdown()


def _query_one(index: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        temperature: int | None = int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        utilization: int | None = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:
        temperature = utilization = None  # not supported in a MIG slice
    return Gpu(
        index,
        str(pynvml.nvmlDeviceGetUUID(handle)),
        str(pynvml.nvmlDeviceGetName(handle)),
        int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        temperature,
        utilization,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(query())))
