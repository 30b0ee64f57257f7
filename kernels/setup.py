"""Builds `paceline.probe._native` against the stable ABI, one wheel for Python 3.10 and newer."""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(str(path) for path in Path("native").glob("*.cc"))
HEADERS = sorted(str(path) for folder in ("native", "include/paceline") for path in Path(folder).glob("*.h"))

setup(
    ext_modules=[
        Extension(
            "paceline.probe._native",
            sources=SOURCES,
            depends=HEADERS,
            include_dirs=["include", "native"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=[
                "-O2",
                "-std=c++17",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Wno-missing-field-initializers",
                "-Wno-cast-function-type",
            ],
            extra_link_args=["-pthread"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
