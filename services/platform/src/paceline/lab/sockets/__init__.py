"""Real faults on real sockets: one process per rank, one network namespace per process.

`python -m paceline.lab.sockets --fault s2 --runs 30` (as root, Linux) injects a fault at a random place
of a host all-reduce, reads the probe pages as an agent does and asks detector and localizer for the
verdict, all in this process (docs/adr/0022-host-collectives.md).
"""
