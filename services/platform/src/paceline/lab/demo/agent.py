"""`paceline agent` for the demo: the same command, started by module name so that no PATH is needed."""

import argparse
import sys

from paceline.agent.commands import add

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add(parser.add_subparsers())
    arguments = parser.parse_args(["agent"])
    sys.exit(arguments.run(arguments))
