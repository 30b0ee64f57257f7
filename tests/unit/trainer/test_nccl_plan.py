"""What `paceline run` turns on for which NCCL: versions, environments and files in, a plan out."""

import sys
from pathlib import Path

import pytest

from paceline.trainer.nccl_found import (
    Family,
    FoundNccl,
    Version,
    find_nccl,
    interpreter_of,
    parse_version,
    read_answer,
    read_conf,
    version_of,
)
from paceline.trainer.nccl_plan import Files, NcclPlan, Reason, plan_nccl

OURS = "/opt/paceline/libpaceline-nccl-profiler.so"
SHIM = "/opt/paceline/libpaceline-nccl-shim.so"
BOTH = Files(OURS, SHIM)


def nccl(*version: int, family: Family = Family.NCCL) -> FoundNccl:
    return FoundNccl(family, (version[0], version[1], version[2]) if version else None, "wheel", "2.13.0")


def reasons(plan: NcclPlan) -> list[Reason]:
    return [part.reason for part in plan.parts]


@pytest.mark.parametrize(
    ("found", "expected", "variables"),
    [
        (nccl(2, 29, 7), [Reason.CALLS, Reason.NOT_NEEDED], {"NCCL_PROFILER_PLUGIN"}),
        (nccl(2, 28, 3), [Reason.CALLS, Reason.NOT_NEEDED], {"NCCL_PROFILER_PLUGIN"}),
        (nccl(2, 27, 5), [Reason.ENQUEUED, Reason.BESIDE_PLUGIN], {"NCCL_PROFILER_PLUGIN", "LD_PRELOAD"}),
        (nccl(2, 27, 2), [Reason.TOO_OLD, Reason.BELOW_PLUGIN], {"LD_PRELOAD"}),
        (nccl(2, 21, 5), [Reason.TOO_OLD, Reason.BELOW_PLUGIN], {"LD_PRELOAD"}),
        (nccl(), [Reason.VERSION_UNKNOWN, Reason.NO_VERSION], {"NCCL_PROFILER_PLUGIN"}),
        (FoundNccl(Family.UNKNOWN), [Reason.VERSION_UNKNOWN, Reason.NO_VERSION], {"NCCL_PROFILER_PLUGIN"}),
        (FoundNccl(Family.NONE), [Reason.NO_NCCL], set()),
        (nccl(2, 27, 7, family=Family.RCCL), [Reason.RCCL_OLD, Reason.RCCL], set()),
        (nccl(2, 28, 3, family=Family.RCCL), [Reason.CALLS, Reason.RCCL], {"NCCL_PROFILER_PLUGIN"}),
    ],
)  # fmt: skip
def test_each_version_gets_what_it_takes(
    found: FoundNccl, expected: list[Reason], variables: set[str]
) -> None:
    plan = plan_nccl(found, {}, BOTH)
    assert reasons(plan) == expected
    assert set(plan.variables) == variables
    assert len(plan.lines()) <= 4


def test_what_was_not_built_is_said_and_not_set() -> None:
    plan = plan_nccl(nccl(2, 27, 5), {}, Files(None, None))
    assert reasons(plan) == [Reason.NOT_BUILT, Reason.NOT_BUILT]
    assert plan.variables == {}


def test_disabled_sets_nothing() -> None:
    plan = plan_nccl(nccl(2, 29, 7), {"PACELINE_DISABLED": "1"}, BOTH)
    assert (reasons(plan), plan.variables) == ([Reason.DISABLED], {})


@pytest.mark.parametrize(
    ("theirs", "chained"),
    [
        ("/opt/x/libnccl-profiler-inspector.so", "/opt/x/libnccl-profiler-inspector.so"),
        ("libnccl-profiler-inspector.so", "libnccl-profiler-inspector.so"),
        ("inspector", "libnccl-profiler-inspector.so"),  # as NCCL would have looked it up
    ],
)
def test_another_profiler_is_called_behind_ours(theirs: str, chained: str) -> None:
    plan = plan_nccl(nccl(2, 29, 7), {"NCCL_PROFILER_PLUGIN": theirs}, BOTH)
    assert reasons(plan) == [Reason.CALLS, Reason.CHAINED, Reason.NOT_NEEDED]
    assert plan.variables == {"NCCL_PROFILER_PLUGIN": OURS, "PACELINE_CHAIN_PROFILER": chained}
    conf = Files(OURS, SHIM, {"NCCL_PROFILER_PLUGIN": theirs})  # our variable would win over the file
    assert plan_nccl(nccl(2, 29, 7), {}, conf).variables == plan.variables


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"NCCL_PROFILER_PLUGIN": "none"}, Reason.USER_SAYS_NONE),
        ({"NCCL_PROFILER_PLUGIN": "static"}, Reason.USER_HAS_STATIC),
        ({"NCCL_PROFILER_PLUGIN": "/elsewhere/libpaceline-nccl-profiler.so"}, Reason.ALREADY_SET),
        ({"NCCL_PROFILER_PLUGIN": "/a.so", "PACELINE_CHAIN_PROFILER": "/b.so"}, Reason.CHAIN_TAKEN),
    ],
)
def test_what_a_user_has_set_stays(environment: dict[str, str], reason: Reason) -> None:
    plan = plan_nccl(nccl(2, 29, 7), environment, BOTH)
    assert plan.parts[0].reason is reason
    assert plan.variables == {}


def test_no_profiler_of_theirs_is_displaced_where_ours_cannot_load() -> None:
    environment = {"NCCL_PROFILER_PLUGIN": "inspector"}
    assert plan_nccl(nccl(2, 26, 2), environment, Files(OURS, None)).variables == {}
    assert plan_nccl(nccl(2, 29, 7), environment, Files(None, None)).variables == {}


def test_the_shim_stands_before_what_was_preloaded_and_is_not_set_twice() -> None:
    plan = plan_nccl(nccl(2, 21, 5), {"LD_PRELOAD": "/a.so /b.so"}, BOTH)
    assert plan.variables == {"LD_PRELOAD": f"{SHIM}:/a.so:/b.so"}
    again = plan_nccl(nccl(2, 21, 5), {"LD_PRELOAD": f"{SHIM}:/a.so"}, BOTH)
    assert (again.parts[1].reason, again.variables) == (Reason.ALREADY_SET, {})


def test_little_shared_memory_is_said() -> None:
    assert "64 MiB" in plan_nccl(nccl(2, 29, 7), {}, Files(OURS, SHIM, {}, 64 << 20)).lines()[-1]
    assert plan_nccl(nccl(2, 29, 7), {}, Files(OURS, SHIM, {}, 8 << 30)).notes == ()


@pytest.mark.parametrize(("code", "version"), [(22907, (2, 29, 7)), (2804, (2, 8, 4)), (21005, (2, 10, 5))])
def test_version_numbers(code: int, version: Version) -> None:
    assert version_of(code) == version


def test_versions_in_text() -> None:
    assert parse_version("2.27.5.1") == (2, 27, 5)
    assert parse_version("2.27") is None
    assert parse_version("9" * 5000) is None


def answer(**changes: object) -> bytes:
    import json

    plain = {"torch": "2.13.0", "wheel": "", "wheel_version": "", "library": "", "code": 0, "error": ""}
    return b"noise\npaceline " + json.dumps({**plain, **changes}).encode() + b"\n"


def test_answers_of_the_child() -> None:
    wheel = {"wheel": "nvidia-nccl-cu13", "wheel_version": "2.29.7"}
    library = "/x/nvidia/nccl/lib/libnccl.so.2"
    loaded = read_answer(answer(**wheel, library=library, code=22907), 0, "python")
    assert (loaded.family, loaded.version, loaded.source) == (Family.NCCL, (2, 29, 7), "nvidia-nccl-cu13")
    broken = read_answer(answer(**wheel, error="cannot open"), 0, "python")
    assert (broken.version, broken.source) == ((2, 29, 7), "nvidia-nccl-cu13, not loaded")
    rocm = read_answer(answer(torch="2.9.0+rocm7.0", library="/x/librccl.so", code=22803), 0, "python")
    assert rocm.family is Family.RCCL
    assert read_answer(answer(), 0, "python").family is Family.NONE


@pytest.mark.parametrize(
    "words", [b"", b"paceline []\n", b'paceline {"torch": 1}\n', b"paceline \xff\n", b"paceline 1\n"]
)
def test_an_answer_that_is_none_is_unknown(words: bytes) -> None:
    found = read_answer(words, -11, "python")
    assert found.family is Family.UNKNOWN
    assert "status -11" in found.why


def test_the_child_is_not_waited_for_for_ever() -> None:
    hanging = find_nccl(sys.executable, {}, question="import time; time.sleep(60)", limit_s=0.3)
    assert (hanging.family, "within 0.3 s" in hanging.why) == (Family.UNKNOWN, True)
    dying = find_nccl(sys.executable, {}, question="import os; os.abort()")
    assert (dying.family, "status -6" in dying.why) == (Family.UNKNOWN, True)


def test_the_interpreter_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    firsts = {
        "torchrun": f"#!{sys.executable}",
        "env-run": "#!/usr/bin/env python3",
        "srun": "#!/bin/sh",
        "bin": "\x7fELF",
    }
    for name, first in firsts.items():
        (tmp_path / name).write_text(f"{first}\nimport sys\n")
        (tmp_path / name).chmod(0o755)
    assert interpreter_of("torchrun") == sys.executable
    assert (interpreter_of("env-run") or "").endswith("python3")
    assert interpreter_of("srun") is interpreter_of("bin") is interpreter_of("no-such-program") is None
    assert interpreter_of(sys.executable) == sys.executable


def test_configuration_files_of_nccl(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("# mine\nNCCL_PROFILER_PLUGIN=inspector\n")
    (tmp_path / "nccl.conf").write_text("NCCL_PROFILER_PLUGIN = other\nNCCL_DEBUG=INFO\nnonsense\n")
    found = read_conf({"HOME": str(tmp_path)}, str(tmp_path / "nccl.conf"))
    assert found == {"NCCL_PROFILER_PLUGIN": "inspector", "NCCL_DEBUG": "INFO"}
    assert read_conf({"NCCL_CONF_FILE": "/nonexistent"}, "/nonexistent") == {}
