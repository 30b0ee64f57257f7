"""Called by torch through the entry point `torch.backends` while `import torch` runs."""


def autoload() -> None:
    """Attach where PACELINE asks for it; never raises, since that would break `import torch`."""
