"""Builds `paceline.probe._native` against the stable ABI, one wheel for Python 3.10 and newer, and beside
it the NCCL profiler plugin, a library without Python."""

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


class BuildExtAndPlugin(build_ext):
    """A failure to build the plugin is told and costs the plugin only: most processes never load it."""

    def run(self) -> None:
        super().run()
        if not sys.platform.startswith("linux"):
            return
        try:
            self._build_plugin()
        except Exception as error:
            sys.stderr.write(f"paceline: the NCCL profiler plugin was not built: {error}\n")

    def _plugin_path(self) -> Path:
        return Path(self.get_ext_fullpath("paceline.probe._native")).with_name(NCCL["PLUGIN"])

    def _build_plugin(self) -> None:
        objects = self.compiler.compile(
            list(NCCL["PLUGIN_SOURCES"]),
            output_dir=os.path.join(self.build_temp, "nccl"),
            include_dirs=["include", "native", "nccl"],
            extra_postargs=["-O2", "-std=c++17", *NCCL["PLUGIN_FLAGS"], *WARNINGS],
        )
        target = self._plugin_path()
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects, str(target), extra_postargs=list(NCCL["PLUGIN_LINK"]), target_lang="c++"
        )

    def get_outputs(self) -> list[str]:
        path = self._plugin_path()
        return [*super().get_outputs(), *([str(path)] if path.is_file() else [])]


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
    cmdclass={"build_ext": BuildExtAndPlugin, "build_py": BuildPyAndCuda},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
