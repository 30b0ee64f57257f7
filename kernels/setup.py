"""Builds `paceline.probe._native` against the stable ABI, one wheel for Python 3.10 and newer, and beside
it the NCCL profiler plugin and the LD_PRELOAD shim, libraries without Python."""

import os
import runpy
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

SOURCES = sorted(str(path) for path in Path("native").glob("*.cc"))
HEADERS = sorted(str(path) for folder in ("native", "include/paceline") for path in Path(folder).glob("*.h"))
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-cast-function-type"]
NCCL = runpy.run_path("src/paceline/probe/nccl.py")


class BuildPyAndCuda(build_py):
    """The CUDA sources travel in the package: they are compiled where they run."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "paceline/collectives/cuda/source"
        shutil.copytree("cuda", target / "cuda", dirs_exist_ok=True)
        shutil.copytree("include", target / "include", dirs_exist_ok=True)


class BuildExtAndNccl(build_ext):
    """A failure to build a library for NCCL is told and costs only it: most processes never load it."""

    def run(self) -> None:
        super().run()
        if not sys.platform.startswith("linux"):
            return
        for name, sources, link in (
            (NCCL["PLUGIN"], NCCL["PLUGIN_SOURCES"], NCCL["PLUGIN_LINK"]),
            (NCCL["SHIM"], NCCL["SHIM_SOURCES"], NCCL["SHIM_LINK"]),
        ):
            try:
                self._build(name, list(sources), list(link))
            except Exception as error:
                sys.stderr.write(f"paceline: {name} was not built: {error}\n")

    def _path(self, name: str) -> Path:
        return Path(self.get_ext_fullpath("paceline.probe._native")).with_name(name)

    def _build(self, name: str, sources: list[str], link: list[str]) -> None:
        objects = self.compiler.compile(
            [source for source in sources if source not in self._compiled],
            output_dir=os.path.join(self.build_temp, "nccl"),
            include_dirs=list(NCCL["INCLUDES"]),
            extra_postargs=["-O2", "-std=c++17", *NCCL["PLUGIN_FLAGS"], *WARNINGS],
        )
        self._compiled.update(zip((s for s in sources if s not in self._compiled), objects, strict=True))
        target = self._path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            [self._compiled[source] for source in sources],
            str(target),
            extra_postargs=link,
            target_lang="c++",
        )

    def initialize_options(self) -> None:
        super().initialize_options()
        self._compiled: dict[str, str] = {}  # objects by source: most of them are in both libraries

    def get_outputs(self) -> list[str]:
        paths = [self._path(NCCL[name]) for name in ("PLUGIN", "SHIM")]
        return [*super().get_outputs(), *(str(path) for path in paths if path.is_file())]


setup(
    ext_modules=[
        Extension(
            "paceline.probe._native",
            sources=SOURCES,
            depends=HEADERS,
            include_dirs=["include", "native"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=["-O2", "-std=c++17", "-fvisibility=hidden", *WARNINGS],
            extra_link_args=["-pthread"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildExtAndNccl, "build_py": BuildPyAndCuda},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
