"""The child process that reads the kernel's files of adapters below the folder in its argument, and prints them as one
JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from runtime.agent.hardware.infiniband.sysfs import read_tree


def main() -> None:
    tree, unreadable = read_tree(Path(sys.argv[1]))
    json.dump({"tree": tree, "unreadable": unreadable}, sys.stdout)
