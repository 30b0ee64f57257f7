"""`paceline eval`: run, print, and say by the exit status whether every bar is met."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from paceline.lab.evaluation.bars import Bar, judge_bars
from paceline.lab.evaluation.cases import Case
from paceline.lab.evaluation.execute import CodeChangedError, run_cases
from paceline.lab.evaluation.peers import PeerRow, compare_tools
from paceline.lab.evaluation.plan import Amount, all_cases, peer_cases
from paceline.lab.evaluation.records import RecordError, Records
from paceline.lab.evaluation.runner import Result
from paceline.lab.evaluation.table import describe, failures, make_rows, peer_lines, quiet_rows, render

INTERRUPTED = 130


def run(arguments: argparse.Namespace) -> int:
    """0 where every bar that was run is met, 1 where one is missed, 2 where nothing was run, 130 where
    it was interrupted."""
    if arguments.no_run and not arguments.record:
        sys.stderr.write("paceline eval: --no-run prints what a file has: name it with --record FILE\n")
        return 2
    try:
        path = Path(arguments.record) if arguments.record else None
        records = Records.open(path, any_code=arguments.no_run) if path else None
    except RecordError as error:
        sys.stderr.write(f"paceline eval: {error}\n")
        return 2
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _evaluate(arguments, records)
    except KeyboardInterrupt:
        kept = f"; the same command goes on with what {records.path} lacks" if records else ""
        sys.stderr.write(f"paceline eval: interrupted{kept}\n")
        return INTERRUPTED
    except CodeChangedError as error:
        sys.stderr.write(f"paceline eval: {error}\n")
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)
        if records is not None:
            records.close()


def _evaluate(arguments: argparse.Namespace, records: Records | None) -> int:
    amount = Amount.short() if arguments.short else Amount.whole(arguments.seeds, arguments.healthy_hours)
    started_s = time.monotonic()
    only = tuple(arguments.only or ())
    cases, compared = list(all_cases(amount, only)), peer_cases(amount, only)
    if arguments.no_run and records is not None:
        results = list(records.results(cases))
        peers = [row for case in compared for row in records.peers(case) or ()]
    else:
        results = _results(cases, arguments.jobs, records)
        peers = list(_peers(compared, records))
    if not results and not peers:
        sys.stderr.write(f"paceline eval: {_nothing(arguments, only)}\n")
        return 2
    bars = judge_bars(results, peers, amount, short=arguments.short)
    if arguments.json:
        sys.stdout.write(json.dumps(as_data(results, peers, bars)) + "\n")
    else:
        sys.stdout.write(render(results, bars, peer_lines(peers)))
        cpu_s = sum(result.cpu_s for result in results)
        spent_s = time.monotonic() - started_s
        sys.stdout.write(f"\n{len(results)} jobs of {len(cases)}, {cpu_s:.0f} s of CPU, {spent_s:.0f} s\n")
    return 1 if any(bar.met is False for bar in bars) else 0


def _nothing(arguments: argparse.Namespace, only: Sequence[str]) -> str:
    return f"{arguments.record} has no such job" if arguments.no_run else f"no case matches {' '.join(only)}"


def as_data(results: Sequence[Result], peers: Sequence[PeerRow], bars: Sequence[Bar]) -> dict[str, object]:
    """What --json prints."""
    return {
        "jobs": len(results),
        "rows": [asdict(row) for row in make_rows(results)],
        "healthy": [asdict(row) for row in quiet_rows(results)],
        "peers": [asdict(row) for row in peers],
        "failures": [describe(result) for result in failures(results)],
        "bars": [asdict(bar) for bar in bars],
    }


def _results(cases: Sequence[Case], jobs: int, records: Records | None) -> list[Result]:
    """Of all cases, in their order, whatever the order in which they ended."""
    if records is None:
        found = {id(case): result for case, result in run_cases(cases, jobs)}
        return [result for case in cases if (result := found[id(case)]) is not None]
    left = [case for case in cases if case not in records]
    if len(left) < len(cases) or records.others:
        sys.stderr.write(
            f"{records.path}: {len(cases) - len(left)} of {len(cases)} jobs are recorded"
            f" ({records.others} lines of other code, {records.torn} torn)\n"
        )
    for case, result in run_cases(left, jobs):
        records.add(case, result)
    return list(records.results(cases))


def _peers(cases: Sequence[Case], records: Records | None) -> Iterator[PeerRow]:
    for case in cases:
        rows = records.peers(case) if records is not None else None
        if rows is None:
            rows = tuple(compare_tools([case]))
            if records is not None:
                records.add_peers(case, rows)
        yield from rows
