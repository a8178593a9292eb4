"""Comes first on the standard input of the host's Python: takes in the other files as modules, and does one step.

Nothing is written to the host for that, and no word of it, a key above all, stands in a command line.
"""

import json
import os
import sys
import types


def run(sources, step, words):
    """Import ``sources`` (JSON: module -> text, in the order of their imports), call ``module.function`` with
    ``words`` (JSON), and print as JSON what it returns; a refusal of ours is part of that."""
    os.umask(0o022)
    for name, text in json.loads(sources).items():
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(text, name + ".py", "exec"), module.__dict__)  # noqa: S102 (our own text)
    module, _, function = step.partition(".")
    refusal = sys.modules["node"].Refusal
    try:
        answer = getattr(sys.modules[module], function)(**json.loads(words))
    except refusal as error:
        answer = {"failed": str(error), "code": error.code, "restored": error.restored}
    answer["warnings"] = sys.modules["node"].WARNINGS
    sys.stdout.write(json.dumps(answer) + "\n")
