"""Sizes as people write them: `64M`, `512k`, `1G`; powers of 1024."""

import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"(\d{1,12})\s*([kmg]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str, least: int = 1) -> int:
    """Bytes; ValueError names the text and what was expected."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError(f"size {text!r}, expected a number of bytes with k, M or G, for example 64M")
    size = int(match[1]) * _UNITS[match[2].lower()]
    if size < least:
        raise ValueError(f"size {text!r}, expected at least {least} bytes")
    return size
