"""`paceline eval`: run, print, and say by the exit status whether every bar is met."""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from paceline.lab.evaluation.bars import Bar, judge_bars
from paceline.lab.evaluation.cases import Case
from paceline.lab.evaluation.peers import PeerRow, compare_tools
from paceline.lab.evaluation.plan import Amount, all_cases, peer_cases
from paceline.lab.evaluation.runner import Result, run_case
from paceline.lab.evaluation.table import describe, failures, make_rows, peer_lines, render


def run(arguments: argparse.Namespace) -> int:
    """0 where every bar that was run is met, 1 where one is missed, 2 where nothing was run."""
    amount = Amount.short() if arguments.short else Amount.whole(arguments.seeds, arguments.healthy_hours)
    started_s = time.monotonic()
    only = tuple(arguments.only or ())
    cases = list(all_cases(amount, only))
    results = list(_run_all(cases, arguments.jobs, quiet=arguments.json))
    peers = list(compare_tools(peer_cases(amount, only)))
    if not results and not peers:
        sys.stderr.write(f"paceline eval: no case matches --only {' '.join(only)}\n")
        return 2
    bars = judge_bars(results, peers, amount, short=arguments.short)
    if arguments.json:
        sys.stdout.write(json.dumps(as_data(results, peers, bars)) + "\n")
    else:
        sys.stdout.write(render(results, bars, peer_lines(peers)))
        cpu_s = sum(result.cpu_s for result in results)
        sys.stdout.write(
            f"\n{len(results)} jobs, {cpu_s:.0f} s of CPU, {time.monotonic() - started_s:.0f} s\n"
        )
    return 1 if any(bar.met is False for bar in bars) else 0


def as_data(results: Sequence[Result], peers: Sequence[PeerRow], bars: Sequence[Bar]) -> dict[str, object]:
    """What --json prints."""
    return {
        "jobs": len(results),
        "rows": [asdict(row) for row in make_rows(results)],
        "peers": [asdict(row) for row in peers],
        "failures": [describe(result) for result in failures(results)],
        "bars": [asdict(bar) for bar in bars],
    }


def _run_all(cases: Sequence[Case], jobs: int, *, quiet: bool) -> Iterator[Result]:
    for done, result in enumerate(_results(cases, jobs), 1):
        if not quiet and sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {len(cases)} jobs ")
        if result is not None:
            yield result


def _results(cases: Sequence[Case], jobs: int) -> Iterator[Result | None]:
    if jobs <= 1:
        yield from map(run_case, cases)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_case, cases, chunksize=4)
