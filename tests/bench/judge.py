"""Seconds of one judgement from evidence in memory, of every class: `python -m tests.bench.judge`.

Jobs of 4,096 to 98,304 ranks with four communicators each (world, tensor, data, pipeline). The last
line of each size names the worst class, against the goal for that size.
"""

import argparse
import json
import statistics
import time
from dataclasses import fields

from paceline.analysis import JobEvidence
from paceline.analysis.judge import judge
from tests.bench.judge_jobs import HANGS, SLOW, hang_evidence, slow_evidence

CLASSES = (*HANGS, *SLOW)
GOALS_MS = {4096: 20, 16384: 60, 98304: 250}


def make_evidence(name: str, ranks: int) -> JobEvidence:
    """Evidence of a job of class `name`, one of `CLASSES`."""
    return slow_evidence(name, ranks) if name in SLOW else hang_evidence(name, ranks)


def measure(name: str, ranks: int, repeats: int = 15) -> dict[str, object]:
    """Median, quartiles and worst of `repeats` judgements, each of evidence that nothing was read from."""
    evidence = make_evidence(name, ranks)
    verdict = judge(evidence)
    times = []
    for _ in range(repeats):
        forget(evidence)
        started = time.perf_counter()
        judge(evidence)
        times.append((time.perf_counter() - started) * 1000)
    low, median, high = statistics.quantiles(times, n=4)
    return {
        "ranks": ranks,
        "case": name,
        "communicators": evidence.communicators,
        "rounds": len(evidence.rounds),
        "median_ms": round(median, 1),
        "quartiles_ms": [round(low, 1), round(high, 1)],
        "worst_ms": round(max(times), 1),
        "class": verdict.verdict_class.value,
        "summary": verdict.summary,
    }


def forget(evidence: JobEvidence) -> None:
    """Drop what an earlier judgement has derived."""
    for name in set(evidence.__dict__) - {field.name for field in fields(evidence)}:
        del evidence.__dict__[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="*", default=list(GOALS_MS))
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of cases")
    arguments = parser.parse_args()
    names = [name for name in CLASSES if not arguments.only or any(part in name for part in arguments.only)]
    results = [measure(name, ranks) for ranks in arguments.ranks for name in names]
    if arguments.json:
        print(json.dumps(results))
        return
    print(
        f"{'ranks':>6} {'case':<25} {'comms':>6} {'rounds':>7} {'median':>7} "
        f"{'quartiles':>14} {'worst':>6}  ms"
    )
    for ranks in arguments.ranks:
        rows = [row for row in results if row["ranks"] == ranks]
        for row in rows:
            spread = "{} to {}".format(*row["quartiles_ms"])  # type: ignore[misc]
            print(
                f"{ranks:>6} {row['case']:<25} {row['communicators']:>6} {row['rounds']:>7} "
                f"{row['median_ms']:>7} {spread:>14} {row['worst_ms']:>6}  {str(row['summary'])[:70]}"
            )
        slowest = max(rows, key=lambda row: float(str(row["median_ms"])))
        goal = f", goal {GOALS_MS[ranks]} ms" if ranks in GOALS_MS else ""
        print(f"{ranks:>6} worst: {slowest['case']}, {slowest['median_ms']} ms{goal}")


if __name__ == "__main__":
    main()
