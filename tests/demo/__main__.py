"""``python -m tests.demo up|down|purge``."""

import argparse
import sys

from tests.demo.play import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=sys.modules["tests.demo"].__doc__)
    parser.add_argument("action", choices=("up", "down", "purge"))
    parser.add_argument("--nodes", type=int, default=3)
    arguments = parser.parse_args()
    sys.exit(main(arguments.action, arguments.nodes))
