"""An error of one process in files in which nobody says that it waits."""

from pathlib import Path

from paceline.analysis.diagnosis import Diagnosis, diagnose
from paceline.contracts.verdicts import ActionKind, VerdictClass


def raised(rank: int, size: str = "2.00") -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/app/train.py", line 10, in <module>\n'
        f"[rank{rank}]:     loss = model(batch)\n"
        f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size} GiB.\n"
    )


def answer(folder: Path, text: str) -> Diagnosis:
    (folder / "train.log").write_text(text)
    return diagnose([str(folder)])[-1]


def test_one_rank_of_one_log(tmp_path: Path) -> None:
    found = answer(tmp_path, "[rank5]: step 7 loss 2.5\n" + raised(5))
    assert (found.verdict_class, [root.rank for root in found.roots]) == (VerdictClass.H1, [5])
    assert (found.action.kind, found.victims) == (ActionKind.FIX_CODE, ())
    assert found.confidence < 0.9
    assert "logs of all ranks" in found.would_decide[0]


def test_error_that_the_program_survived(tmp_path: Path) -> None:
    more = "".join(f"iteration {step} / 100 | loss 2.5\n" for step in range(8, 20))
    found = answer(tmp_path, raised(5) + more)
    assert found.verdict_class is VerdictClass.INCONCLUSIVE


def test_the_same_error_of_every_rank_blames_none(tmp_path: Path) -> None:
    found = answer(tmp_path, "".join(raised(rank, f"{rank}.50") for rank in range(8)))
    assert found.verdict_class is VerdictClass.INCONCLUSIVE
    assert [root.rank for root in found.roots] == [None]
    assert "Every rank raised the same error" in found.summary
