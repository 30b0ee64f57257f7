"""The length lint finds what it must and nothing else."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[3] / "tools" / "check_lengths.py"


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location("check_lengths", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_lengths"] = module
    spec.loader.exec_module(module)
    return module


def body(lines: int) -> str:
    return "".join(f"    x{i} = {i}\n" for i in range(lines))


@pytest.mark.parametrize(("lines", "count"), [(69, 0), (70, 1)])
def test_python_functions_may_have_70_lines(lint: ModuleType, lines: int, count: int) -> None:
    found = lint.check_file("a.py", f"def f():\n{body(lines)}")
    assert len(found) == count


def test_docstring_does_not_count(lint: ModuleType) -> None:
    docstring = '    """' + "text\n" * 30 + '    """\n'
    assert lint.check_file("a.py", f"def f():\n{docstring}{body(69)}") == []


@pytest.mark.parametrize(("lines", "count"), [(68, 0), (69, 1)])
def test_c_functions_may_have_70_lines(lint: ModuleType, lines: int, count: int) -> None:
    text = "namespace a {\nint f() {\n" + "  x();\n" * lines + "}\n}\n"
    assert len(lint.check_file("a.cc", text)) == count


@pytest.mark.parametrize(("lines", "count"), [(500, 0), (501, 1)])
def test_files_may_have_500_lines(lint: ModuleType, lines: int, count: int) -> None:
    assert len(lint.check_file("a.ts", "x\n" * lines)) == count
