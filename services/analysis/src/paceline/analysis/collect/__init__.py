"""Gathers what a hung job still shows on this node, before anybody kills it, into one archive.

It only looks: no process is stopped, nothing is written but the archive; what a job was configured to do on
request (a Flight Recorder dump) is asked for. Each item has a time limit, and what was not got is said.
"""

from paceline.analysis.collect.gather import Request, collect

__all__ = ["Request", "collect"]
