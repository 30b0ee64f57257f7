"""`paceline agent` for the demo: the same command, started by module name so that no PATH is needed."""

import argparse
import sys

from paceline.agent.commands import run

if __name__ == "__main__":
    sys.exit(run(argparse.Namespace(kafka=None, socket=None, node=None, interval=None)))
