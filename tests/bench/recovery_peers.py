"""`make bench-recovery`: this repair beside a whole restart and beside the peers, in one run of one machine.

A round is: a few kills through the whole platform in mode auto (`repair_platform`), one whole restart
(`recovery`: kill all, start again, load the checkpoint, first step), and one kill for each peer; the first
round measures planned replacements as well (`planned_session`). Everybody trains the same tiny model on 4
gloo ranks in steps of 70 ms and loses a random rank at a random phase by SIGKILL. The figure is the time to
the first step to which 4 ranks have given their gradients. Peers live in environments of their own below
`.paceline/peers`; one that cannot be installed here is named with the installer's reason. What is measured
goes to `.paceline/recovery-peers.json`; `--add` counts what is there already as well. Status 1 where a bar
of ours is missed.

    python -m tests.bench.recovery_peers --rounds 5
    python -m tests.bench.recovery_peers --rounds 1 --seed 2 --parts restart torchrun --add
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paceline.trainer.testing import draw_fault
from tests.bench.peers.environments import ROOT, prepare
from tests.bench.peers.systems import SYSTEMS
from tests.bench.recovery import PAUSE_S, STEPS, one_restart
from tests.bench.repair_summary import spread

OUTPUT = ROOT / ".paceline" / "recovery-peers.json"
RANKS = 4
UNPLANNED_RATIO_MIN = 5.0  # a whole restart takes so many times as long
PLANNED_RATIO_MIN = 15.0
PROGRAM_S_MAX = 600.0
PARTS = ("planned", "platform", "restart", *SYSTEMS)


def run_program(module: str, *words: str) -> dict[str, Any]:
    """The JSON of a bench's last line; its error as `error`."""
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False
    )
    lines = done.stdout.strip().splitlines()
    if not lines:
        return {"error": done.stderr[-1000:]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def one_round(
    data: dict[str, Any], names: Sequence[str], seed: int, arguments: argparse.Namespace
) -> Iterator[str]:
    """Measures one after the other, adds it to `data` and says what it was."""
    if "planned" in names and "pause_ms" not in data["planned"]:
        words = ["--switches", str(arguments.switches)]
        data["planned"] = run_program("tests.bench.planned_session", *words)
        yield f"planned: {data['planned']}"
    if "platform" in names:
        kills = str(arguments.kills)
        words = ["--kills", kills, "--stops", "0", "--seed", str(seed * arguments.kills), "--each"]
        data["platform"].append(run_program("tests.bench.repair_platform", *words))
        yield f"platform: {figure_of_platform(data['platform'][-1])}"
    if "restart" in names:
        data["restarts"].append(one_restart(RANKS, ["--steps", str(STEPS), "--pause", str(PAUSE_S)]))
        yield f"restart: {data['restarts'][-1]:.2f} s"
    fault = draw_fault(seed, RANKS, STEPS)
    for name, system in SYSTEMS.items():
        if name in names and name not in data["unavailable"]:
            run = system.run(fault)
            data["peers"].setdefault(name, []).append(asdict(run))
            yield f"{name}: {run.fault}: {run.full_s}{' lost' if run.lost else ''}"


def figure_of_platform(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return str(found["error"])[-300:]
    kills = found["sigkill"]
    return f"{kills['recovered']} of {kills['of']}, {kills['fault_to_first_full_step_s']}"


def summarise(data: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of the table, ratios and missed bars. Pure."""
    platform = data["platform"]
    ours = [run for part in platform for run in part.get("runs", [])]
    whole = [run for run in ours if run["recovered"]]
    rows: dict[str, Any] = {
        "paceline": {
            "words": "Paceline, whole platform in mode auto",
            "of": sum(part["sigkill"]["of"] for part in platform if "sigkill" in part),
            "recovered": len(whole),
            "full_s": spread([run["total_s"] for run in whole]),
            "back_s": spread([run["total_s"] for run in whole]),  # nobody goes on alone
            "replayed_max": max((run["replayed"] for run in whole), default=-1),
        }
    }
    for name, system in SYSTEMS.items():
        runs = data["peers"].get(name, [])
        good = [run for run in runs if run["full_s"] is not None]
        rows[name] = {
            "words": system.words,
            "of": len(runs),
            "recovered": len(good),
            "full_s": spread([run["full_s"] for run in good]),
            "back_s": spread([run["back_s"] for run in good]),
            "replayed_max": max((run["replayed"] for run in good), default=-1),
            "lost": [f"{run['fault']}: {run['lost'][:200]}" for run in runs if run["lost"]],
            "unavailable": data["unavailable"].get(name, ""),
        }
    restarts = spread(data["restarts"])
    rows["restart"] = {
        "words": "kill all, start again, load the checkpoint", "of": len(data["restarts"]),
        "recovered": len(data["restarts"]), "full_s": restarts, "back_s": restarts, "replayed_max": None,
    }  # fmt: skip
    ratios = ratios_of(rows, data["planned"])
    return {
        "rows": rows,
        "ratios": ratios,
        "missed": missed_bars(platform, ratios),
        "planned": data["planned"],
    }


def ratios_of(rows: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, float | None]:
    """A whole restart against a repair, and against the pause of a planned replacement."""
    restart, ours = rows["restart"]["full_s"], rows["paceline"]["full_s"]
    pause_ms = planned.get("pause_ms", {}).get("median")
    return {
        "unplanned": round(restart["median"] / ours["median"], 1) if restart and ours else None,
        "planned": round(restart["median"] * 1e3 / pause_ms, 1) if restart and pause_ms else None,
    }


def missed_bars(platform: Sequence[Mapping[str, Any]], ratios: Mapping[str, float | None]) -> list[str]:
    missed = [text for part in platform for text in part.get("missed", [part.get("error", "")])]
    for name, least in (("unplanned", UNPLANNED_RATIO_MIN), ("planned", PLANNED_RATIO_MIN)):
        ratio = ratios[name]
        if ratio is None or ratio < least:
            missed.append(f"a restart takes {ratio} times as long ({name}), bar {least:g}")
    return missed


def print_table(found: Mapping[str, Any]) -> None:
    ours = found["rows"]["paceline"]["full_s"]
    print(f"{'system':70} {'recovered':>9} {'all ranks step again, s':>25} {'times ours':>10} "
          f"{'anybody, s':>10} {'replayed':>8}")  # fmt: skip
    for row in found["rows"].values():
        if row.get("unavailable"):
            print(f"{row['words']:70} not installed: {row['unavailable']}")
            continue
        full, back = row["full_s"], row["back_s"]
        text = f"{full['median']:.2f} ({full['min']:.2f} to {full['max']:.2f})" if full else "-"
        times = f"{full['median'] / ours['median']:.1f}" if full and ours else "-"
        anybody = f"{back['median']:.2f}" if back else "-"
        share = f"{row['recovered']} of {row['of']}"
        print(f"{row['words']:70} {share:>9} {text:>25} {times:>10} {anybody:>10} {row['replayed_max']!s:>8}")
    print(f"planned replacement: pause {found['planned'].get('pause_ms')} ms; ratios {found['ratios']}")
    for text in found["missed"]:
        print(f"missed: {text}")


def keep(data: Mapping[str, Any]) -> None:
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({**summarise(data), "data": data}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=4, help="through the platform in each round")
    parser.add_argument("--switches", type=int, default=8, help="planned replacements")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--add", action="store_true", help="to what was measured before")
    arguments = parser.parse_args()
    data: dict[str, Any] = {"platform": [], "restarts": [], "peers": {}, "planned": {}, "load_average": []}
    if arguments.add and OUTPUT.exists():
        data = json.loads(OUTPUT.read_text())["data"]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends in order
    reasons = {name: prepare(system.environment) for name, system in SYSTEMS.items()}
    data["unavailable"] = {name: reason for name, reason in reasons.items() if reason}
    for number in range(arguments.rounds):
        for text in one_round(data, arguments.parts, arguments.seed + number, arguments):
            print(text, file=sys.stderr, flush=True)
            keep(data)
        data["load_average"].append(os.getloadavg()[0])
    keep(data)
    print_table(found := summarise(data))
    print(json.dumps(found))
    return 1 if found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
