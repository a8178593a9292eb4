"""Comes first on the standard input of the host's Python: takes in the other files as modules, and does one thing.

Nothing is written to the host for that.
"""

import json
import signal
import sys
import types

STEPS = {
    "prepare": "host",
    "unpack": "host",
    "try_out": "change",
    "switch": "change",
    "rollback": "change",
    "front": "front",
}


def run(sources, step, words):
    """Import ``sources`` (JSON: module -> text, in the order of their imports), do ``step``, print its JSON."""
    for name, text in json.loads(sources).items():
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(text, name + ".py", "exec"), module.__dict__)  # noqa: S102 (our own text)
    host = sys.modules["host"]
    words = json.loads(words)
    # The controller's connection may end meanwhile: what was begun is brought to its end.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if step == "look":
        answer = host.look(words)
    else:
        with host.alone():
            try:
                answer = getattr(sys.modules[STEPS[step]], step)(words)
            except (host.Refusal, RuntimeError) as error:
                answer = host.said("refused", host.link("current"), words.get("release"), str(error))
    sys.stdout.write(json.dumps(answer) + "\n")
