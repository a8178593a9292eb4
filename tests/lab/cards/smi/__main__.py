"""The lab's ``nvidia-smi``: prints what a driver of the 550 line prints, from the card state file."""

from __future__ import annotations

import sys

import mig
import query
import table
import topology
from state import Failure, State, misbehave

USAGE = """Usage: nvidia-smi [-L] [-i ID] [-mig 0|1] [--query-gpu=FIELDS --format=csv[,noheader][,nounits]]
       nvidia-smi --query-compute-apps=FIELDS --format=csv | topo -m | mig [OPTION...] | --version"""


def main(words: list[str]) -> int:
    """Returns the exit code; what is asked decides which module answers."""
    state = State.read()
    misbehave(state, words)
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if words[:1] == ["--version"]:
        return table.print_versions(state)
    if words[:1] == ["mig"]:
        return mig.main(state, words[1:])
    if words[:1] == ["topo"]:
        return topology.main(state, words[1:])
    options = _options(words)
    cards = state.select(options.get("-i"))
    if "-mig" in options:
        return mig.set_mode(state, cards, options["-mig"])
    if "-L" in options:
        return table.print_list(cards)
    for kind, answer in (("--query-gpu", query.cards), ("--query-compute-apps", query.processes)):
        if kind in options:
            if not options.get("--format"):
                raise Failure(
                    "\"--format=\" switch is missing. Please run 'nvidia-smi --help-query-gpu' for more info.", 2
                )
            return answer(state, cards, options[kind].split(","), options["--format"].split(","))
    return table.print_table(state, cards)


def _options(words: list[str]) -> dict[str, str]:
    """``{"-i": "0", "--query-gpu": "..."}``; an option that is not known ends with code 2."""
    options: dict[str, str] = {}
    names = {"--id": "-i", "--list-gpus": "-L", "--multi-instance-gpu": "-mig"}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = names.get(name, name)
        if name == "-L":
            options[name] = "yes"
            continue
        if name not in ("-i", "-mig", "--query-gpu", "--query-compute-apps", "--format"):
            raise Failure(
                f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n(hf-lab: {word})", 2
            )
        if not equals:
            if not rest:
                raise Failure(f"Option {word} needs a value", 2)
            value = rest.pop(0)
        options[name] = value
    return options


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except Failure as failure:
        print(failure.text)
        code = failure.code
    sys.exit(code)
