"""Whatever is called, NCCL is called with it once, and its answer is the caller's."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.nccl.conftest import KERNELS, compile_all
from tests.unit.nccl_shim.conftest import NATIVE, StartShim

IN, OUT, STREAM = "0x10", "0x20", "(nil)"
CALLS = {
    "init 1 4 2 5": "CommInitRank 4 5 2",
    "config 1 4 2 5": "CommInitRankConfig 4 5 2 1",
    "scalable 1 4 2 5": "CommInitRankScalable 4 2 1 5 1",
    "all 1 2": "CommInitAll 2 1",
    "split 0 1 3 1": "CommSplit 3 1 0",
    "split 0 1 -1 1": "CommSplit -1 1 0",
    "shrink 0 1 2": "CommShrink 2 1 0 1",
    "grow 0 1 6 -1 -1": "CommGrow 1 6 -1 -1 1",
    "grow 0 1 6 9 -1": "CommGrow 1 6 9 -1 1",
    "grow -1 1 6 9 5": "CommGrow 0 6 9 5 1",
    "finalize 0": "CommFinalize",
    "async 0": "CommGetAsyncError",
    "groupstart": "GroupStart",
    "allreduce 0 100 7 2": f"AllReduce {IN} {OUT} 100 7 2 {STREAM}",
    "broadcast 0 100 7 3": f"Broadcast {IN} {OUT} 100 7 3 {STREAM}",
    "bcast 0 100 7 3": f"Broadcast {IN} {IN} 100 7 3 {STREAM}",
    "reduce 0 100 7 2 3": f"Reduce {IN} {OUT} 100 7 2 3 {STREAM}",
    "allgather 0 100 9": f"AllGather {IN} {OUT} 100 9 {STREAM}",
    "reducescatter 0 100 9 1": f"ReduceScatter {IN} {OUT} 100 9 1 {STREAM}",
    "alltoall 0 100 9": f"AlltoAll {IN} {OUT} 100 9 {STREAM}",
    "gather 0 100 9 2": f"Gather {IN} {OUT} 100 9 2 {STREAM}",
    "scatter 0 100 9 2": f"Scatter {IN} {OUT} 100 9 2 {STREAM}",
    "send 0 100 8 3": f"Send {IN} 100 8 3 {STREAM}",
    "recv 0 100 8 3": f"Recv {IN} 100 8 3 {STREAM}",
}
ENDS = {"destroy 0": "CommDestroy", "abort 0": "CommAbort"}


@pytest.mark.parametrize("environment", [{}, {"PACELINE_DISABLED": "1"}], ids=["on", "off"])
def test_each_call_reaches_nccl_once_as_it_was_made(
    start_shim: StartShim, environment: dict[str, str]
) -> None:
    process = start_shim(**environment)
    process.all("init 0 4 2 1")
    for line, words in (CALLS | ENDS).items():
        if line in ENDS:
            process.all("init 0 4 2 9")
        before = process.call("calls")
        process.all(line)
        assert (process.ask("last"), process.call("calls") - before) == (words, 1), line
    process.all("groupstart", "simulate", "groupend")  # one was open
    assert (process.call("version"), process.call("unique")) == (22005, 7)
    assert process.end() == 0


def test_errors_are_passed_on_and_leave_no_operation_open(start_shim: StartShim) -> None:
    process = start_shim()
    process.all("init 0 4 2 1", "allreduce 0 8 7 0", "answer 5")
    failing = [*CALLS, "groupend"]
    assert {process.call(line) for line in failing if not line.startswith("async")} == {5}
    assert process.call("async 0") == 500
    process.all("answer 0", "allreduce 0 8 7 0")
    frame = process.frame()
    assert int(frame["head_round"]) == int(frame["round"]), "only the newest is open"
    assert process.end() == 0


def test_disabled_makes_no_page(start_shim: StartShim) -> None:
    process = start_shim(PACELINE_DISABLED="1")
    process.all("init 0 4 2 1", "allreduce 0 8 7 0")
    assert process.descriptor("paceline-page", os.O_RDONLY) is None


def symbols_of(library: Path) -> set[str]:
    """What it exports under NCCL's own prefix and, of ours, anything."""
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    names = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    return names if library.name == "shim.so" else {name for name in names if name.startswith("nccl")}


def wrapped_functions() -> set[str]:
    return {
        line.split("(")[1].split(",")[0]
        for line in (KERNELS / "nccl_shim" / "api.h").read_text().splitlines()
        if line.strip().startswith("X(")
    }


def real_nccl() -> Path:
    """Of a wheel; the test is skipped where there is none."""
    package = find_spec("nvidia")
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    found = [path for folder in folders for path in Path(folder).glob("nccl*/lib/libnccl.so.2")]
    if not found:
        pytest.skip("no wheel of NCCL here: torch without CUDA")
    return found[0]


def test_only_the_wrapped_functions_are_exported(shim_built: Path) -> None:
    exported, wrapped = symbols_of(shim_built / "shim.so"), wrapped_functions()
    assert exported == wrapped
    assert len(wrapped) == 27


# Public functions of NCCL that go past the shim, and why that loses nothing that it is there for.
PASSED = {
    "they only ask": (
        "ncclCommCount ncclCommUserRank ncclCommCuDevice ncclCommMemStats ncclCommQueryProperties "
        "ncclGetErrorString ncclGetLastError ncclCommGetUniqueId ncclWinGetUserPtr"
    ),
    "memory and factors, by one rank alone": (
        "ncclMemAlloc ncclMemFree ncclCommRegister ncclCommDeregister ncclCommWindowRegister "
        "ncclCommWindowDeregister ncclRedOpCreatePreMulSum ncclRedOpDestroy"
    ),
    "no communicator begins or ends with them, and none of its operations": (
        "ncclCommRevoke ncclCommSuspend ncclCommResume"
    ),
    "one-sided: nobody else comes to the same call": "ncclPutSignal ncclSignal ncclWaitSignal",
    "for kernels that communicate by themselves, of a communicator that is there": (
        "ncclDevCommCreate ncclDevCommDestroy ncclGetLsaDevicePointer ncclGetLsaMultimemDevicePointer "
        "ncclGetMultimemDevicePointer ncclGetPeerDevicePointer ncclGinBarrierCreateRequirement "
        "ncclGinInboxA2ACreateRequirement ncclGinOutboxCreateRequirement ncclLLA2ACalcSlots "
        "ncclLLA2ACreateRequirement ncclLsaBarrierCreateRequirement ncclTeamLsa ncclTeamRail "
        "ncclTeamRankToLsa ncclTeamRankToWorld ncclTeamWorld"
    ),
    "its own log": "ncclResetDebugInit ncclResetDebugInitInternal",
}


def test_each_public_function_is_wrapped_or_passed_on_purpose() -> None:
    """A newer NCCL with a function that is on neither list fails here: decide, and write it down."""
    exported = symbols_of(real_nccl())
    passed = {name for names in PASSED.values() for name in names.split()}
    assert exported - wrapped_functions() - passed == set()
    assert passed & wrapped_functions() == set()


def test_without_nccl_calls_fail_and_nothing_else(shim_built: Path) -> None:
    script = "import ctypes; n = ctypes.c_int(); print(ctypes.CDLL(None).ncclGetVersion(ctypes.byref(n)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LD_PRELOAD": str(shim_built / "shim.so")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["5"]
    assert "no NCCL in this process has ncclGetVersion" in done.stderr


TWO = """
import ctypes, sys
users = [ctypes.CDLL(path) for path in sys.argv[1:]]
print(*(user.version() for user in users), *(user.version() for user in users))
"""


def test_libraries_keep_their_own_nccl_with_and_without_p_names(shim_built: Path, tmp_path: Path) -> None:
    """Loaded as torch is: in nobody's scope but their user's."""
    users = []
    for version, plain in ((22105, ()), (22203, ("-DFAKE_PLAIN",))):
        folder = tmp_path / str(version)
        folder.mkdir()
        nccl = folder / f"libnccl-{version}.so.2"
        flags = ["-fPIC", f"-DFAKE_VERSION={version}", *plain]
        errors = compile_all([NATIVE / "fake_nccl.cc"], nccl, flags, ["-shared", "-ldl"]) or compile_all(
            [NATIVE / "user.cc"], folder / "user.so", ["-fPIC"], ["-shared", str(nccl)]
        )
        assert not errors, errors
        users.append(str(folder / "user.so"))
    done = subprocess.run(
        [sys.executable, "-c", TWO, *users],
        env={**os.environ, "LD_PRELOAD": str(shim_built / "shim.so")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["22105", "22203"] * 2


REAL = """
import ctypes, sys
real, everybody = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None)
number, name = ctypes.c_int(), ctypes.create_string_buffer(128)
address = lambda function: ctypes.cast(function, ctypes.c_void_p).value
assert address(real.ncclGetVersion) != address(everybody.ncclGetVersion)
results = everybody.ncclGetVersion(ctypes.byref(number)), everybody.ncclGetUniqueId(name)
print(*results, number.value, sum(map(bool, name.raw)))
"""


def test_the_real_nccl_answers_through_it(shim_built: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REAL, real_nccl()],
        # a machine without a network has the loopback only, which NCCL takes if it is named
        env={**os.environ, "LD_PRELOAD": str(shim_built / "shim.so"), "NCCL_SOCKET_IFNAME": "lo"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    version_result, id_result, version, filled = map(int, done.stdout.split())
    assert (version_result, id_result) == (0, 0)
    assert version >= 22000
    assert filled >= 8
