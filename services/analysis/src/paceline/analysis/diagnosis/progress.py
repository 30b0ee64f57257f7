"""Progress on standard error while many files are read; only where a person looks at a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paceline.analysis.adapters.inputs import Source
from paceline.analysis.adapters.reading import Reading

Watch = Callable[[Reading, Source], None]
NAME_CHARS_MAX = 40


@contextmanager
def watching(quiet: bool = False, cover: Callable[[str], str] = str) -> Iterator[Watch]:
    """The function that `read_inputs` calls before each file; `cover` changes the name that is shown."""
    if quiet or not sys.stderr.isatty():
        yield lambda reading, source: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as progress:
        task = progress.add_task("reading")

        def watch(reading: Reading, source: Source) -> None:
            name = cover(source.name)[-NAME_CHARS_MAX:]
            words = f"{reading.files:,} files, {reading.lines:,} lines, {len(reading.facts):,} facts: {name}"
            progress.update(task, description=words)

        yield watch
        progress.update(task, description=f"{progress.tasks[0].description.split(':')[0]}: deciding")
