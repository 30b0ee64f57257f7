"""Recordings as files and as sequences; no torch."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.trainer.sandbox import files
from paceline.trainer.sandbox.errors import RecordingRefused
from paceline.trainer.sandbox.files import load, save
from paceline.trainer.sandbox.recorder import choose_recorders
from paceline.trainer.sandbox.recording import Call, GroupRecording, Output, Recording, signature_of

NOW_S = 1000.0


def tensor(dtype: str, *shape: int) -> SimpleNamespace:
    return SimpleNamespace(dtype=f"torch.{dtype}", shape=shape)


@pytest.fixture
def recording() -> Recording:
    calls = (
        Call("allreduce(float32[2]; op SUM)", (Output("float32", (2,), 0),)),
        Call("barrier()"),
        Call("broadcast(uint8[1]; root 0)", (Output("uint8", (1,), 1),)),
    )
    return Recording("middle", 3, 8, 2, (GroupRecording("world", 3, 8, calls),), [b"\0" * 8, b"\n"])


def test_a_file_gives_back_what_was_saved_and_is_private(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "recording"
    written = save(recording, path, now_s=NOW_S)
    assert path.stat().st_size == written
    assert path.stat().st_mode & 0o777 == 0o600
    assert load(path, now_s=NOW_S) == recording
    assert [child.name for child in tmp_path.iterdir()] == ["recording"]


def test_a_file_that_others_may_read_is_refused(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "recording"
    save(recording, path, now_s=NOW_S)
    path.chmod(0o640)
    with pytest.raises(RecordingRefused, match="mode 640; expected this user's, mode 600"):
        load(path, now_s=NOW_S)


def test_an_expired_file_is_removed(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "recording"
    save(recording, path, life_s=60, now_s=NOW_S)
    with pytest.raises(RecordingRefused, match="expired"):
        load(path, now_s=NOW_S + 61)
    assert not path.exists()


@pytest.mark.parametrize("expires", [b"NaN", b"Infinity", b"1e12"])
def test_no_file_lives_for_ever(tmp_path: Path, recording: Recording, expires: bytes) -> None:
    path = tmp_path / "recording"
    save(recording, path, life_s=60, now_s=NOW_S)
    path.write_bytes(path.read_bytes().replace(b"1060.0", expires))
    with pytest.raises(RecordingRefused, match="expired"):
        load(path, now_s=NOW_S)
    with pytest.raises(ValueError, match="life_s"):
        save(recording, path, life_s=float(expires), now_s=NOW_S)


def test_saving_removes_what_has_expired_and_what_a_killed_writer_left(
    tmp_path: Path, recording: Recording
) -> None:
    save(recording, tmp_path / "old", life_s=60, now_s=NOW_S)
    save(recording, tmp_path / "young", life_s=6000, now_s=NOW_S)
    half = (tmp_path / "old").read_bytes()[:50]
    for name, written_s in ((".half.1", NOW_S - 8 * 86_400), (".half.2", NOW_S)):
        (tmp_path / name).write_bytes(half)
        (tmp_path / name).chmod(0o600)
        os.utime(tmp_path / name, (written_s, written_s))
    (tmp_path / "letter").write_bytes(b"not ours to remove")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    save(recording, tmp_path / "new", now_s=NOW_S + 100)
    left = {child.name for child in tmp_path.iterdir()}
    assert left == {"young", ".half.2", "letter", "pipe", "folder", "new"}


def test_a_recording_that_took_the_name_of_an_expired_one_stays(
    tmp_path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recording"
    save(recording, path, life_s=60, now_s=NOW_S)
    has_expired = files._has_expired

    def meanwhile(header: dict[str, Any], now_s: float) -> bool:
        monkeypatch.setattr(files, "_has_expired", has_expired)
        save(replace(recording, role="last"), tmp_path / "other", now_s=NOW_S + 61)
        (tmp_path / "other").rename(path)
        return has_expired(header, now_s)

    monkeypatch.setattr(files, "_has_expired", meanwhile)
    with pytest.raises(RecordingRefused, match="expired"):
        load(path, now_s=NOW_S + 61)
    assert load(path, now_s=NOW_S + 61).role == "last"


def test_a_link_is_not_followed(tmp_path: Path, recording: Recording) -> None:
    save(recording, tmp_path / "recording", now_s=NOW_S)
    os.symlink("recording", tmp_path / "link")
    with pytest.raises(RecordingRefused):
        load(tmp_path / "link", now_s=NOW_S)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"X" + data[1:], "no recording"),
        (lambda data: data[:-1], "not the size"),
        (lambda data: data[:-1] + b"\t", "tensors are damaged"),
        (lambda data: data.replace(b'"blobs"', b'"BLOBS"'), "head is damaged"),
        (lambda data: data.replace(b"[1],1]", b"[1],7]"), "head is damaged"),
        (lambda data: data[:40], "head is damaged"),
        (lambda data: data.replace(b"[[8,", b"[[Infinity,"), "head is damaged"),
        (lambda data: data.replace(b"[[8,", b"[[-1,"), "head is damaged"),
        (lambda data: data[:21] + b"[" * 100_000 + data[21:], "head is damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, recording: Recording, change: Any, message: str) -> None:
    path = tmp_path / "recording"
    save(recording, path, now_s=NOW_S)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(RecordingRefused, match=message):
        load(path, now_s=NOW_S)


def test_a_new_recording_takes_the_place_of_the_old_one(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "recording"
    save(recording, path, now_s=NOW_S)
    save(replace(recording, role="last"), path, now_s=NOW_S)
    assert load(path, now_s=NOW_S).role == "last"


def test_the_lowest_rank_of_each_role_records() -> None:
    assert choose_recorders({3: "last", 0: "first", 1: "middle", 2: "middle"}) == {
        "first": 0,
        "middle": 1,
        "last": 3,
    }


def test_a_signature_says_what_has_to_be_equal() -> None:
    reduce = SimpleNamespace(reduceOp=SimpleNamespace(op=SimpleNamespace(name="SUM")), asyncOp=True)
    assert (
        signature_of("allreduce", ([tensor("float32", 4, 2)], reduce), {})
        == "allreduce(float32[4, 2]; op SUM)"
    )
    root = SimpleNamespace(rootRank=2, rootTensor=0)
    assert signature_of("broadcast", ([tensor("int32", 5)], root), {}) == "broadcast(int32[5]; root 2)"
    assert signature_of("send", ([tensor("int64", 1)], 3, 0), {}) == "send(int64[1]; 3; 0)"
    both = [tensor("float32", 4), tensor("float32", 4)]
    assert signature_of("allgather", ([both], [both[0]]), {}) == "allgather(2 x float32[4]; float32[4])"
    assert signature_of("barrier", (), {"opts": SimpleNamespace(timeout=3)}) == "barrier()"


def test_two_names_of_one_operation_have_one_signature() -> None:
    arguments = (tensor("float32", 4), tensor("float32", 2))
    assert signature_of("_allgather_base", arguments, {}) == signature_of("all_gather_single", arguments, {})
