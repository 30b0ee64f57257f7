"""The score of `paceline diagnose` on incidents: `python -m tests.incidents.score [CASE...] [--variants]`,
or `--cases DIR` for those of another folder.

For each case 1 point for a class that counts as right, 1 for the first cause and no victim (or a refusal
where that is right), 1 for the operation or phase; 2 points less for a victim named as first cause, and for
an action on a machine where the case is no communication fault and its answer asks for none.

Answers stand in `case.json`; `targets.json` says where an answer is a sentence which fields name it. The
diagnosis sees a copy of the case without both, under a name that says nothing. `variants` are further cases
of the same kinds, each with its own `target.json`.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.analysis.diagnosis import diagnose

HERE = Path(__file__).parent
CASES = HERE / "cases"
VARIANTS = HERE / "variants"
TARGETS: dict[str, dict[str, Any]] = json.loads((HERE / "targets.json").read_text("utf-8"))
ANSWERS = ("case.json", "expect.json", "target.json")  # never part of the input
NODE_ACTIONS = ("replace_node", "reset_gpu")
POINTS_MAX = 3
LABELS = {  # the classes of a verdict in the words of the cases
    "NONE": ("none",),
    "INCONCLUSIVE": ("undetermined",),
    "DEAD_PROCESS": ("H1",),
    "INIT": ("H1", "H3"),
    "DEADLOCK": ("H2", "H3"),
}


@dataclass(frozen=True)
class Score:
    case: str
    klass: int
    root: int
    operation: int
    victim: bool
    node_action: bool
    answered: str
    roots: str
    seconds: float = 0.0

    @property
    def points(self) -> int:
        return self.klass + self.root + self.operation - 2 * self.victim - 2 * self.node_action


def variant_names(folder: Path = VARIANTS) -> list[str]:
    """Every case of a folder, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/case.json"))


def score_case(name: str, folder: Path = VARIANTS) -> tuple[Score, dict[str, Any]]:
    """Score and answer of a public case, or of one in `folder`."""
    public = folder == VARIANTS and name in TARGETS
    place = CASES / name if public else folder / name
    case = json.loads((place / "case.json").read_text("utf-8"))
    target = TARGETS[name] if public else json.loads((place / "target.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary) / "inputs"
        shutil.copytree(place, inputs, ignore=shutil.ignore_patterns(*ANSWERS))
        answer = json.loads(json.dumps(diagnose([str(inputs)])[-1].as_json()))
    return score_answer(name, case, target, answer), answer


def score_answer(name: str, case: dict[str, Any], target: dict[str, Any], answer: dict[str, Any]) -> Score:
    """Points of one answer; `answer` is the JSON object that people get."""
    labels = LABELS.get(answer["class"], (answer["class"],))
    victim = _names_victim(case, target, answer)
    machine = answer["action"]["kind"] in NODE_ACTIONS
    return Score(
        case=name,
        klass=int(any(label in case["accept_classes"] for label in labels)),
        root=int(not victim and _hits(name, target["root"], answer)),
        operation=int(_says(target["op"], answer)),
        victim=victim,
        node_action=machine and case["comm_fault"] is False and not target.get("node_action", False),
        answered=f"{answer['class']}/{answer['sub_reason']}",
        roots="; ".join(_root_text(root) for root in answer["roots"]),
    )


def named_ranks(answer: dict[str, Any]) -> set[int]:
    """Ranks that the answer gives as first cause."""
    found: set[int] = set()
    for root in answer["roots"]:
        if root["kind"] != "none":
            found |= {root["rank"]} if "rank" in root else set()
            found |= set(root.get("ranks", ()))
    return found


def _names_victim(case: dict[str, Any], target: dict[str, Any], answer: dict[str, Any]) -> bool:
    named, wanted = named_ranks(answer), target["root"]
    victims = target.get("victims", case.get("victims"))
    if victims == "others":
        return bool(named - set(wanted.get("ranks", ())))
    if isinstance(victims, list) and all(isinstance(rank, int) for rank in victims):
        return bool(named & set(victims))
    if wanted["kind"] == "gpu":
        gpus = {root["gpu"] for root in answer["roots"] if root.get("gpu")}
        nodes = {root["node"] for root in answer["roots"] if root.get("node")}
        return bool(gpus - {wanted["gpu"]}) or bool("node" in wanted and nodes - {wanted["node"]})
    return False


def _hits(name: str, wanted: dict[str, Any], answer: dict[str, Any]) -> bool:
    roots, named = answer["roots"], named_ranks(answer)
    text = json.dumps([roots, answer["summary"]]).lower()
    words = all(word in text for word in wanted.get("words", ()))
    gpus = {root.get("gpu") for root in roots}
    nodes = {root["node"] for root in roots if root.get("node")}
    match wanted["kind"]:
        case "ranks":
            pair = "or_pair" in wanted and named == set(wanted["or_pair"])
            silent = wanted.get("or_none") and not named
            return named == set(wanted["ranks"]) or pair or bool(silent)
        case "gpu":
            return wanted["gpu"] in gpus and wanted.get("node", "") in ("", *nodes) and words
        case "node":
            return nodes == {wanted["node"]} and (not named or named == set(wanted["ranks"])) and words
        case "nodes":
            return nodes == set(wanted["nodes"])
        case "rotating":
            return any(root["kind"] == "rotating" for root in roots) and named <= set(wanted["ranks"])
        case "setting":
            return not named and not nodes and words
        case "process":
            return words or named == set(wanted["or_ranks"])
        case "local_rank":
            return str(wanted["local_rank"]) in gpus and not named
        case "no_rank" | "no_machine":
            return not named and not nodes and gpus <= {None}
        case "events":
            return _all_events(json.loads((CASES / name / wanted["file"]).read_text("utf-8")), answer)
    raise ValueError(f"unknown kind of target {wanted['kind']}")


def _all_events(expected: Sequence[dict[str, Any]], answer: dict[str, Any]) -> bool:
    """Every event of the list is in the evidence, and a device is the first cause."""
    lines = [ground["statement"] for ground in answer["evidence"]]
    for event in expected:
        number = f"SXid {event['sxid']}" if "sxid" in event else f"Xid {event['code']}"
        place = f"nvswitch{event['switch']}" if "sxid" in event else event["pci"]
        if not any(number in line and place in line for line in lines):
            return False
    return bool(answer["roots"]) and answer["roots"][0]["kind"] in ("gpu", "domain", "rank")


def _says(alternatives: Sequence[Sequence[str]], answer: dict[str, Any]) -> bool:
    parts = (answer["communicator"], answer["operation"], answer["phase"], answer["summary"])
    text = json.dumps(parts).lower()
    return any(all(token in text for token in tokens) for tokens in alternatives)


def _root_text(root: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in root.items() if key not in ("role", "why"))


def score_all(names: Sequence[str], folder: Path = VARIANTS) -> Iterator[tuple[Score, dict[str, Any]]]:
    for name in names:
        yield score_case(name, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="beginnings of names; all where none")
    parser.add_argument("--json", action="store_true", help="print the answers")
    parser.add_argument("--variants", action="store_true", help="the cases of `variants`")
    parser.add_argument("--cases", dest="folder", type=Path, help="a folder of such cases")
    options = parser.parse_args(arguments)
    folder = options.folder or VARIANTS
    names = [
        name
        for name in (variant_names(folder) if options.variants or options.folder else sorted(TARGETS))
        if not options.cases or any(name.startswith(begin) for begin in options.cases)
    ]
    scores = []
    print(f"{'case':44} class root op  pts  answer")
    for score, answer in score_all(names, folder):
        scores.append(score)
        marks = ("  VICTIM" if score.victim else "") + ("  NODE ACTION" if score.node_action else "")
        points = f"{score.klass:>5} {score.root:>4} {score.operation:>2} {score.points:>4}"
        print(f"{score.case[:44]:44} {points}  {score.answered}  {score.roots[:90]}{marks}")
        if options.json:
            print(json.dumps(answer, indent=1))
    total, most = sum(score.points for score in scores), POINTS_MAX * len(scores)
    victims = sum(score.victim for score in scores)
    machines = sum(score.node_action for score in scores)
    print(
        f"{total} of {most} points ({total / max(most, 1):.1%}), {victims} victims, {machines} wrong "
        "node actions"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
