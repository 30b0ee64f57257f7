"""Functions of at most 70 lines, files of at most 500, in every language of the repository.

`python tools/check_lengths.py [PATH...]` prints one line for each violation and exits 1.
Docstrings do not count towards a Python function. In C and C++ a function is a block that opens on
a line without indentation and closes with `}` in the first column, which the formatter guarantees;
in TypeScript the console's own linter measures functions, here only files count.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
PYTHON = {".py", ".pyi"}
C_LIKE = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
OTHERS = {".ts", ".tsx", ".css", ".sh"}
GENERATED = ("kernels/include/paceline/probe_v1.h", "web/src/api/schema.ts")


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def check_file(path: str, text: str) -> list[Violation]:
    """All violations of one file."""
    lines = text.splitlines()
    found = []
    if len(lines) > FILE_LINES_MAX:
        found.append(Violation(path, 1, f"file has {len(lines)} lines, at most {FILE_LINES_MAX}: split it"))
    suffix = Path(path).suffix
    if suffix in PYTHON:
        functions = _python_functions(text)
    elif suffix in C_LIKE:
        functions = _c_functions(lines)
    else:
        return found
    for name, line, length in functions:
        if length > FUNCTION_LINES_MAX:
            found.append(
                Violation(path, line, f"{name} has {length} lines, at most {FUNCTION_LINES_MAX}: split it")
            )
    return found


def _python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            skipped = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1 - skipped


def _c_functions(lines: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    start = 0
    for number, line in enumerate(lines, 1):
        opens = line.rstrip().endswith("{") and line[:1] not in (" ", "\t", "}", "#")
        if opens and not line.startswith(("namespace", "extern", "struct", "class", "enum", "typedef")):
            start = number
        elif line.startswith("}") and start:
            yield lines[start - 1].strip(" {"), start, number - start + 1
            start = 0


def _tracked_files() -> list[str]:
    output = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout
    return output.splitlines()


def main(arguments: Sequence[str]) -> int:
    wanted = PYTHON | C_LIKE | OTHERS
    violations = []
    for path in arguments or _tracked_files():
        if Path(path).suffix in wanted and path not in GENERATED and Path(path).is_file():
            violations += check_file(path, Path(path).read_text())
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
