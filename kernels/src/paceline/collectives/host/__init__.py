"""Collectives between processes of one or several hosts, over TCP, with exact counts and waits.

`group.HostGroup` is the way in. It exists for hosts without an accelerator and for measuring faults on
real sockets; it writes the probe pages as a kernel-level source does (docs/adr/0022-host-collectives.md).
Needs numpy, so it is no part of what enters a training image.
"""
