"""Where the NCCL profiler plugin is, and what it is made of. Standard library only.

`python -m paceline.probe.nccl` prints its path, for `NCCL_PROFILER_PLUGIN`.
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
    "nccl/budget.cc",
    "nccl/calls.cc",
    "nccl/chain.cc",
    "nccl/clock.cc",
    "nccl/comm.cc",
    "nccl/device.cc",
    "nccl/events.cc",
    "nccl/identity.cc",
    "nccl/marker.cc",
    "nccl/names.cc",
    "nccl/nccl_version.cc",
    "nccl/operations.cc",
    "nccl/page_source.cc",
    "nccl/plugin.cc",
    "nccl/tier.cc",
)
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


def plugin_path() -> Path | None:
    """The built plugin, None where this installation has none (no compiler, or not Linux)."""
    path = Path(__file__).with_name(PLUGIN)
    return path if path.is_file() else None


def shim_path() -> Path | None:
    """The built library for LD_PRELOAD, None where this installation has none."""
    path = Path(__file__).with_name(SHIM)
    return path if path.is_file() else None


def main() -> int:
    path = plugin_path()
    if path is None:
        sys.stderr.write(
            f"paceline: {PLUGIN} was not built with this package; install it with a C++ compiler\n"
        )
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
