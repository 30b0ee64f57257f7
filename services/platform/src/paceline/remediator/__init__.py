"""Decides about repair: policy, approval, state machine (docs/adr/0043-remediation.md)."""
