"""Progress on standard error while many files are read; only where a person looks at a terminal."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from paceline.analysis.adapters.inputs import Source
from paceline.analysis.adapters.reading import Reading

Watch = Callable[[Reading, Source], None]
NAME_CHARS_MAX = 40


@contextmanager
def watching(
    quiet: bool = False, cover: Callable[[str], str] = str, paths: Sequence[str] = ()
) -> Iterator[Watch]:
    """The function that `read_inputs` calls before each file; `cover` changes the name that is shown.

    The files of `paths` are counted first, so that it says how much is left.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda reading, source: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as progress:
        task = progress.add_task("reading")
        total = count_files(paths)

        def watch(reading: Reading, source: Source) -> None:
            name = cover(source.name)[-NAME_CHARS_MAX:]
            of = f" of {total:,}" if reading.files < total else ""  # archives hold more than was counted
            read = f"{reading.files:,}{of} files, {reading.lines:,} lines, {len(reading.facts):,} facts"
            progress.update(task, description=f"{read}: {name}")

        yield watch
        progress.update(task, description=f"{progress.tasks[0].description.split(':')[0]}: deciding")


def count_files(paths: Sequence[str]) -> int:
    """Files below `paths`, archives as one."""
    return sum(
        sum(len(files) for _, _, files in os.walk(path)) if os.path.isdir(path) else 1 for path in paths
    )
