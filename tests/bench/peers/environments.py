"""Peers in virtual environments of their own below `.paceline/peers`, made where they are missing.

They may be moved with the tree.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOME = ROOT / ".paceline" / "peers"
TORCH = "torch==2.13.0"  # of the Makefile
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torchft": ("torchft-nightly==2026.10.26", TORCH, "numpy==2.4.6"),
    "nvrx": ("nvidia-resiliency-ext==0.4.1", TORCH, "numpy==2.4.6"),
}
INSTALL_S_MAX = 1200.0
REASON_CHARACTERS = 300


def python_of(environment: str) -> str:
    """The interpreter of a peer's environment; of this one where the name is empty."""
    return str(HOME / environment / "bin" / "python") if environment else sys.executable


def prepare(environment: str) -> str:
    """Make it unless it is there; empty, or the installer's reason why it cannot be had here."""
    if not environment:
        return ""
    wanted = "\n".join(PACKAGES[environment])
    stamp = HOME / environment / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    HOME.mkdir(parents=True, exist_ok=True)
    uv = str(Path(sys.executable).parent / "uv")
    target = str(HOME / environment)
    install = [uv, "pip", "install", "-q", "--compile-bytecode", "--python", python_of(environment)]
    for command in ([uv, "venv", "-q", "--clear", "--relocatable", "--python", sys.executable, target],
                    [*install, *PACKAGES[environment]]):  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)[-REASON_CHARACTERS:]
        if done.returncode:
            return " ".join(done.stderr.split())[-REASON_CHARACTERS:]
    stamp.write_text(wanted)
    return ""
