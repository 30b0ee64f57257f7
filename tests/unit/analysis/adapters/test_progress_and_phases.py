"""Progress and phases as the frameworks print them."""

import time
from pathlib import Path

import pytest

from paceline.analysis.facts import PhaseKind, PhaseSeen, ProgressSeen
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

P = PhaseKind


@pytest.mark.parametrize(
    ("line", "done", "total", "step_s"),
    [
        (
            " iteration   42780/ 115311 | consumed: 1 | elapsed time per iteration (s): 105.16 |",
            42780,
            115311,
            105.16,
        ),
        (" iteration 10/ 320000 | elapsed time per iteration (ms): 4521.2 | lr: 1E-4", 10, 320000, 4.5212),
        ("step: 640  loss:  7.92  memory: 12GiB(30%)  tps: 3,000  mfu: 20.1%", 640, None, None),
        ("steps: 10 loss: 2.1130 iter time (s): 0.523 samples/sec: 30.6", 10, None, 0.523),
        (
            "Training epoch 0, iteration 5/99 | lr: 1e-4 | global_step: 7 | train_step_timing in s: 3.2",
            7,
            None,
            3.2,
        ),
        ("iter 10: loss 3.2012, time 250.5ms, mfu 30.1%", 10, None, 0.2505),
        ("completed step: 10, seconds: 1.210, TFLOP/s/device: 120", 10, None, 1.21),
        ("Epoch: [0]  [ 10/100]  eta: 0:00:50  lr: 0.1  time: 0.52  data: 0.01", 10, 100, 0.52),
        ("Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.20s/it]", 1, 2, 1.2),
        ("123it [00:10, 10.0it/s]", 123, None, 0.1),
        ("Epoch 3/10 finished", 3, 10, None),
    ],
)
def test_progress(tmp_path: Path, line: str, done: int, total: int | None, step_s: float | None) -> None:
    found = of_type(facts_of(tmp_path, line), ProgressSeen)
    assert [(one.done, one.total) for one in found] == [(done, total)]
    assert found[0].step_s == (None if step_s is None else pytest.approx(step_s))


def test_bars_glued_together_and_to_a_message(tmp_path: Path) -> None:
    bar = "Preparing test set...:  {}%|###5   | {}/67 [23:16<30:00, 41.87s/it]"
    text = (
        bar.format(36, 24)
        + "\r"
        + bar.format(37, 25)
        + bar.format(39, 26)
        + "Traceback (most recent call last)"
    )
    found = of_type(facts_of(tmp_path, text), ProgressSeen)
    assert [one.done for one in found] == [24, 25, 26]
    assert {one.what for one in found[:2]} == {"Preparing test set..."}


@pytest.mark.parametrize(
    "line",
    [
        "max steps = 1000",
        "  Total optimization steps = 500",
        "batch size: 12",
        'File "/x/train.py", line 10, in step',
        '{"step": 3, "loss": 1.0}',
        "warmup step 100",
    ],
)
def test_settings_and_code_are_no_progress(tmp_path: Path, line: str) -> None:
    assert of_type(facts_of(tmp_path, line), ProgressSeen) == []


@pytest.mark.parametrize(
    ("line", "kind", "ended", "duration"),
    [
        ("saving checkpoint at iteration   13000 to /x in torch_dist format", P.CHECKPOINT, False, None),
        ("  successfully saved checkpoint from iteration 13000 to /x", P.CHECKPOINT, True, None),
        ("Saving latest model trained for 3 complete epochs to checkpoint", P.CHECKPOINT, False, None),
        ("Finished saving the checkpoint (or staging)in 5.53 seconds.", P.CHECKPOINT, True, 5.53),
        ("[Torch] Checkpoint global_step100 is about to be saved!", P.CHECKPOINT, False, None),
        ("[Torch] Checkpoint global_step100 is ready now!", P.CHECKPOINT, True, None),
        ("Saving model checkpoint to ./out/checkpoint-500", P.CHECKPOINT, False, None),
        ("Checkpoint Save : Rank: 0 : Start time: 1730.1s : Save duration: 8.5s", P.CHECKPOINT, True, 8.5),
        ("***** Running Evaluation *****", P.EVALUATION, False, None),
        ("{'eval_loss': 1.2, 'eval_runtime': 12.34, 'epoch': 1.0}", P.EVALUATION, True, 12.34),
        ("evaluating 29 datasets", P.EVALUATION, False, None),
        ("validation done", P.EVALUATION, True, None),
        (" validation loss at iteration 1000 | lm loss value: 2.3E+00", P.EVALUATION, True, None),
        (" > building train, validation, and test datasets ...", P.DATA, False, None),
        (" > elasped time to build and save doc-idx mapping (seconds): 12.345", P.DATA, True, 12.345),
        ("Preparing test set...:  36%|#  | 24/67 [23:16<30:00, 41.87s/it]", P.DATA, False, None),
        ("Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01, 1.2s/it]", P.LOAD, False, None),
        ("Model loading took 13.2 GiB and 5.25 seconds", P.LOAD, True, 5.25),
        ("Compiling the model with torch.compile", P.COMPILE, False, None),
        ("torch.compile takes 30.24 s in total", P.COMPILE, True, 30.24),
        ("Graph capturing finished in 20 secs, took 0.5 GiB", P.COMPILE, True, 20.0),
        ("init engine (profile, create kv cache, warmup model) took 23.45 seconds", P.INIT, True, 23.45),
        ("refit/model_to_cpu/move_to_device_start ...", P.OFFLOAD, False, None),
        ("refit/model_to_cpu/move_to_device_done after 4106.03s ...", P.OFFLOAD, True, 4106.03),
        ("[GC] Performing periodic GC collection took 0.05 seconds", P.COLLECT, True, 0.05),
        ("Training completed", P.FINISHED, True, None),
        ("`Trainer.fit` stopped: `max_epochs=100` reached.", P.FINISHED, True, None),
        ("[after training is done] datetime: 2026-01-01", P.FINISHED, True, None),
    ],
)  # fmt: skip
def test_phases(tmp_path: Path, line: str, kind: PhaseKind, ended: bool, duration: float | None) -> None:
    found = of_type(facts_of(tmp_path, line), PhaseSeen)
    assert [(one.kind, one.ended, one.duration_s) for one in found] == [(kind, ended, duration)]


@pytest.mark.parametrize(
    "line",
    [
        "Failed to save checkpoint at iteration 30",
        'File "/x/train.py", line 10, in save_checkpoint',
        "checkpoints will be saved to /out",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)",
        "host:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 - Init COMPLETE",
        "Training epoch 3 completed in 200 s",
        "offload_optimizer: cpu",
    ],
)
def test_these_are_no_phases(tmp_path: Path, line: str) -> None:
    assert of_type(facts_of(tmp_path, line), PhaseSeen) == []


@pytest.mark.parametrize(
    "line",
    [" " * 65_536 + "1%|", "a " * 32_768 + "%|", "━" * 65_536, "━━━ " * 16_384, "12 " * 20_000 + "%|"],
    ids=["blanks", "words", "bar", "bars", "numbers"],
)
def test_a_long_line_that_is_nearly_a_bar_costs_no_minutes(tmp_path: Path, line: str) -> None:
    began = time.thread_time()
    assert not of_type(facts_of(tmp_path, line), ProgressSeen)
    assert time.thread_time() - began < 20
