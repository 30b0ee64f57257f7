"""Where the NCCL profiler plugin and the LD_PRELOAD shim are, and their sources. Standard library only.

`python -m paceline.probe.nccl` prints the plugin's path, for `NCCL_PROFILER_PLUGIN`; with `--shim` that of
the shim, for `LD_PRELOAD`.
"""

from __future__ import annotations

import sys
from pathlib import Path

PLUGIN = "libpaceline-nccl-profiler.so"
SHIM = "libpaceline-nccl-shim.so"
# Relative to the folder `kernels` of the source tree: the page writer, and what speaks with NCCL.
PLUGIN_SOURCES = (
    "native/communicator.cc",
    "native/heart.cc",
    "native/memfd.cc",
    "native/open_ops.cc",
    "native/operations.cc",
    "native/page.cc",
    "native/peers.cc",
    "native/progress.cc",
    "native/ring.cc",
    "native/sources.cc",
    "nccl/agent_link.cc",
    "nccl/behind.cc",
    "nccl/budget.cc",
    "nccl/calls.cc",
    "nccl/chain.cc",
    "nccl/clock.cc",
    "nccl/comm.cc",
    "nccl/device.cc",
    "nccl/events.cc",
    "nccl/groups.cc",
    "nccl/hello.cc",
    "nccl/identity.cc",
    "nccl/marker.cc",
    "nccl/names.cc",
    "nccl/nccl_version.cc",
    "nccl/operations.cc",
    "nccl/outer.cc",
    "nccl/page_source.cc",
    "nccl/plugin.cc",
    "nccl/tier.cc",
)
# The shim is all of it but the search for the shim, behind NCCL's functions.
SHIM_SOURCES = (
    *(source for source in PLUGIN_SOURCES if source != "nccl/behind.cc"),
    "nccl_shim/call.cc",
    "nccl_shim/communicators.cc",
    "nccl_shim/forward.cc",
    "nccl_shim/operations.cc",
    "nccl_shim/registry.cc",
    "nccl_shim/table.cc",
)
INCLUDES = ("include", "native", "nccl", "nccl_shim")
# Nothing may escape into NCCL, and nothing of ours may meet another library's symbols.
PLUGIN_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-pthread")
PLUGIN_LINK = (
    "-pthread",
    "-static-libstdc++",
    "-static-libgcc",
    "-Wl,-z,nodelete",  # NCCL closes the library while its threads may still be inside
    "-Wl,-z,defs",
    "-Wl,--version-script=nccl/exports.map",
    "-ldl",
)
SHIM_LINK = tuple(flag.replace("nccl/exports.map", "nccl_shim/exports.map") for flag in PLUGIN_LINK)


def plugin_path() -> Path | None:
    """The built plugin, None where this installation has none (no compiler, or not Linux)."""
    path = Path(__file__).with_name(PLUGIN)
    return path if path.is_file() else None


def shim_path() -> Path | None:
    """The built library for LD_PRELOAD, None where this installation has none."""
    path = Path(__file__).with_name(SHIM)
    return path if path.is_file() else None


def main(arguments: list[str] | None = None) -> int:
    wants_shim = "--shim" in (sys.argv[1:] if arguments is None else arguments)
    path = shim_path() if wants_shim else plugin_path()
    if path is None:
        name = SHIM if wants_shim else PLUGIN
        sys.stderr.write(
            f"paceline: {name} was not built with this package; install it with a C++ compiler\n"
        )
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
