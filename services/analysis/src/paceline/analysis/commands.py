"""`paceline diagnose` and `paceline collect`: the verdict from files, and the files from a hung job."""

import argparse
import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.analysis.adapters.reading import Reading
    from paceline.analysis.collect import Request
    from paceline.analysis.diagnosis.answer import Diagnosis
    from paceline.analysis.diagnosis.case import Case
    from paceline.analysis.diagnosis.redact import Redactor

EPILOG = """\
exit status: 0 answered, 3 inconclusive, 2 unusable input

  paceline diagnose logs/ dumps/           per-rank logs and Flight Recorder dumps, in any mix
  kubectl logs job/train | paceline diagnose -
  paceline diagnose run.tar.gz --html report.html --redact
"""

COLLECT_EPILOG = """\
exit status: 0 written, 1 nothing of a job was found (kernel and GPU state are written), 2 not written

  paceline collect                                          every rank on this node
  srun --overlap --jobid JOB --ntasks-per-node 1 paceline collect --out $PWD/%h.tar.gz
  kubectl exec POD -- paceline collect --out - > node.tar.gz
"""


def add_diagnose(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand; nothing heavy is imported before it runs."""
    parser = subparsers.add_parser(
        "diagnose",
        help="the verdict from logs, dumps and other files of a job",
        description="Reads logs, Flight Recorder dumps, NCCL RAS and kernel logs, and says who is to blame, "
        "who only waited, why, and what to do. Files are recognised by content.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="files, folders, archives, or - for standard input"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (docs/diagnose.md)")
    parser.add_argument("--html", metavar="FILE", help="write a self-contained page")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev")
    parser.add_argument(
        "--redact", action="store_true", help="pseudonyms for hosts, users, paths and addresses"
    )
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="of an appended log, 1 is the first (default: last)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run_diagnose)


def run_diagnose(arguments: argparse.Namespace) -> int:
    """0 answered, 3 inconclusive, 2 where nothing could be read or written."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy comes: nothing here multiplies matrices
    gc.set_threshold(50_000)  # nothing here is built in circles: less is looked through for them
    from paceline.analysis.adapters.model import UnusableInput
    from paceline.analysis.diagnosis.attempts import split_attempts
    from paceline.analysis.diagnosis.progress import watching
    from paceline.analysis.diagnosis.run import answer, read

    redactor = _redactor() if arguments.redact else None
    try:
        with watching(arguments.quiet or redactor is not None, paths=arguments.paths) as watch:
            reading = read(arguments.paths, watch)
            if not reading.facts:
                raise UnusableInput(_nothing_found(reading))
            cases = split_attempts(reading.facts)
            case = _choose(cases, arguments.attempt)
            diagnosis = answer(case, reading)
            if redactor is not None:
                redactor.learn_all(arguments.paths, reading.facts, diagnosis)
                diagnosis = redactor.redact_diagnosis(diagnosis)
        _write_files(arguments, diagnosis, case, redactor)
        _write_answer(arguments, diagnosis)
    except (UnusableInput, OSError) as error:
        return _fail(str(error), arguments.paths, redactor)
    return diagnosis.exit_status


def _redactor() -> "Redactor":
    from paceline.analysis.diagnosis.redact import Redactor

    return Redactor()


def add_collect(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand; nothing heavy is imported before it runs."""
    parser = subparsers.add_parser(
        "collect",
        help="gather dumps, stacks, logs and states of a hung job on this node",
        description="Gathers from a live, hung job on this node what `paceline diagnose` reads, before "
        "anybody kills it. It stops no process and writes nothing but one archive.",
        epilog=COLLECT_EPILOG,
    )
    parser.add_argument(
        "--pid", type=_pid, action="append", default=[], metavar="N[=RANK]",
        help="repeat; RANK where the environment of N may not be read; default: all ranks",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="FILE", help="default: paceline-HOST-TIME.tar.gz; %%h is the host, - standard output"
    )
    parser.add_argument(
        "--log", action="append", default=[], metavar="FILE", help="also the end of this file; repeat"
    )
    parser.add_argument(
        "--file", action="append", default=[], metavar="FILE", help="also this file, whole; repeat"
    )
    parser.add_argument(
        "--signal", metavar="NAME", help="ask for a dump by this signal, only where the process handles it"
    )
    parser.add_argument(
        "--limit", type=float, default=10.0, metavar="S", help="seconds for one item (default 10)"
    )
    parser.add_argument("--quiet", action="store_true", help="say only where the archive is")
    parser.add_argument(
        "--gentle", action="store_true", help="pause no process even for an instant, at lowest priority"
    )
    parser.add_argument("--no-dumps", action="store_true", help="ask no process for a dump")
    parser.add_argument("--node-only", action="store_true", help="kernel and GPU state, no process")
    parser.add_argument("--total", type=float, default=3600.0, metavar="S", help="seconds for all of it")
    parser.add_argument("--bytes", type=int, metavar="N", help="size of the archive (default 4 GiB)")
    parser.add_argument("--tail", type=int, metavar="N", help="bytes of the end of a log (default 8 MiB)")
    parser.set_defaults(run=run_collect)


def run_collect(arguments: argparse.Namespace) -> int:
    """0 written, 1 written without any process, 2 not written."""
    import shutil
    import tempfile
    from pathlib import Path

    from paceline.analysis.collect import collect
    from paceline.analysis.collect.gather import default_name

    try:
        request = _collect_request(arguments)
        if arguments.gentle:
            os.nice(19)
        if arguments.out == "-":
            with tempfile.TemporaryDirectory() as folder:
                target = Path(folder) / "collect.tar.gz"
                result = collect(request, target)
                with target.open("rb") as stream:
                    shutil.copyfileobj(stream, sys.stdout.buffer)
        else:
            target = Path((arguments.out or default_name()).replace("%h", os.uname().nodename))
            result = collect(request, target)
    except (OSError, ValueError) as error:
        _say(f"nothing written: {error}")
        return 2
    where = "" if arguments.out == "-" else f" in {target}: `paceline diagnose {target}`"
    _say_plain(f"processes: {result.processes}, items: {result.got}, not got: {len(result.missing)}{where}")
    if not result.processes:
        _say(
            "no process with a RANK was found: run as the user of the job (or root), in its container, "
            f"or give --pid. This is user {os.getuid()}"
        )
    return 0 if result.processes else 1


def _collect_request(arguments: argparse.Namespace) -> "Request":
    from paceline.analysis.collect import Request
    from paceline.analysis.collect.gather import LOG_TAIL_BYTES, TOTAL_BYTES_MAX, signal_number

    return Request(
        pids=[pid for pid, _ in arguments.pid],
        logs=arguments.log,
        files=arguments.file,
        signal=signal_number(arguments.signal) if arguments.signal else None,
        limit_s=min(max(arguments.limit, 0.5), 120.0),
        say=(lambda text: None) if arguments.quiet else _say_plain,
        ranks={pid: rank for pid, rank in arguments.pid if rank is not None},
        node_only=arguments.node_only,
        pause=not arguments.gentle,
        ask=not arguments.no_dumps,
        total_s=min(max(arguments.total, 1.0), 3600.0),
        archive_bytes_max=min(max(arguments.bytes or TOTAL_BYTES_MAX, 1 << 20), TOTAL_BYTES_MAX),
        tail_bytes_max=min(max(arguments.tail or LOG_TAIL_BYTES, 4096), LOG_TAIL_BYTES),
    )


def _pid(text: str) -> tuple[int, int | None]:
    pid, _, rank = text.partition("=")
    return int(pid), int(rank) if rank else None


def _choose(cases: "list[Case]", number: int | None) -> "Case":
    from paceline.analysis.adapters.model import UnusableInput

    if number is None:
        return cases[-1]
    if not 1 <= number <= len(cases):
        raise UnusableInput(f"there is no attempt {number}: the input shows {len(cases)}, counted from 1")
    return cases[number - 1]


def _write_files(
    arguments: argparse.Namespace, diagnosis: "Diagnosis", case: "Case", redactor: "Redactor | None"
) -> None:
    if arguments.html is None and arguments.trace is None:
        return
    from paceline.analysis.diagnosis.html import make_page
    from paceline.analysis.diagnosis.picture import make_picture, redacted
    from paceline.analysis.diagnosis.trace import write_trace

    picture = make_picture(diagnosis, case.facts, case.rank_of)
    if redactor is not None:
        picture = redacted(picture, redactor)
    if arguments.html is not None:
        with open(arguments.html, "w", encoding="utf-8") as stream:
            stream.write(make_page(diagnosis, picture))
    if arguments.trace is not None:
        with open(arguments.trace, "w", encoding="utf-8") as stream:
            left_out = write_trace(stream, diagnosis, picture)
        if left_out:
            _say(f"the trace is cut: {left_out} events do not fit")


def _write_answer(arguments: argparse.Namespace, diagnosis: "Diagnosis") -> None:
    import json

    if arguments.json:
        sys.stdout.write(json.dumps(diagnosis.as_json(), ensure_ascii=False, indent=2) + "\n")
        return
    from rich.console import Console

    from paceline.analysis.diagnosis.text import Answer

    console = Console(highlight=False, soft_wrap=False)
    console.print(Answer(diagnosis))


def _nothing_found(reading: "Reading") -> str:
    read = f"files read: {reading.files}, and nothing in them is known"
    why = "; ".join(
        [*reading.skipped.notes[:3], *(f"{name}: nothing recognised" for name in reading.unread[:3])]
    )
    return (
        f"{read} ({why}). Give the ranks' logs (standard error), Flight Recorder dumps, NCCL or kernel logs; "
        "docs/diagnose.md lists what is read. `paceline collect` gathers them from a job that hangs"
    )


def _fail(message: str, paths: list[str], redactor: "Redactor | None") -> int:
    if redactor is not None:
        redactor.learn_all(paths, (), None)
        message = redactor.cover(message)
    _say(message)
    return 2


def _say_plain(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def _say(message: str) -> None:
    sys.stderr.write(f"paceline: {message}\n")
