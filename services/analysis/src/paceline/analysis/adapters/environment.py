"""What processes say of their setup, so that it can be compared: versions of libraries, NCCL's environment.

Settings: `library` (`torch 2.6.0+cu124`) and `nccl_env` (`NCCL_IB_GID_INDEX=3`), each with who says it.
"""

import re
from collections.abc import Iterator

from paceline.analysis.adapters.model import LOOK_CHARS, Block
from paceline.analysis.adapters.nccl_log import device_base
from paceline.analysis.facts import Fact, SettingSeen

_LIBRARY = re.compile(
    r"(?<![\w.-])(?P<name>torch|pytorch|nccl|cuda|transformers|deepspeed|accelerate|lightning|megatron"
    r"|transformer[_-]engine|flash[_-]attn|triton|jax|jaxlib|driver)(?:[ _]version)?\s{0,2}(?:==|[=:])\s{0,2}"
    r"['\"]?v?(?P<version>\d{1,4}\.\d{1,4}[\w.+-]{0,40})",
    re.IGNORECASE,
)
_BY_ENVIRONMENT = re.compile(
    r"\b(?P<name>NCCL_[A-Z0-9_]{2,60}) set by environment to (?P<value>\S{1,120}?)\.?\s*$"
)
_LIBRARIES_MAX = 16


class Environments:
    """At most one fact for each library that a line names."""

    name = "environment"
    needles = ("set by environment", "torch", "nccl", "ersion", "cuda", "jax", "deepspeed")

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text[:LOOK_CHARS]
        if found := _BY_ENVIRONMENT.search(text):
            value = f"{found['name']}={found['value']}"
            yield SettingSeen(**device_base(block), name="nccl_env", value=value, text=text.strip()[:300])
            return
        speaker = block.line.speaker
        if (speaker.rank is None and not speaker.host) or "NCCL INFO" in text or 'File "' in text:
            return  # nobody to compare
        for found in list(_LIBRARY.finditer(text))[:_LIBRARIES_MAX]:
            value = f"{found['name'].lower()} {found['version']}"
            yield SettingSeen(**device_base(block), name="library", value=value, text=text.strip()[:300])
