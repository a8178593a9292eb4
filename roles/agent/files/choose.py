"""For a host whose settings the agent may not take: the first ones that it does take."""

import os

import node
import undo
from level import set_aside


def choose(run, release, paths, texts):
    """Which of these settings the agent takes: the first. ``paths``: where each comes from, the present ones first.

    It is asked of the new build in a cache of its own: the host's may be broken, and an agent may run from it.
    """
    with node.locked():
        undo.need_own(run)
        folder = node.RELEASES + "/" + release
        index, said = _first_that_it_takes(folder, texts)
        if index is None:
            raise undo.failed(node.STEP, "the agent does not take these settings: " + said)
        path = paths[index]
        if index and os.path.lexists(node.SETTINGS):
            node.warn("the agent did not take the settings: " + said)
            set_aside(node.SETTINGS)
        if index and path == os.devnull:
            node.warn("of the settings only the address, the key, the node's id and labels are left")
        elif index or path != node.SETTINGS:
            node.warn(f"the settings are those of {path} now")
        return {"index": index}


def _first_that_it_takes(folder, texts):
    """(which one, what the agent said of the very first)."""
    said = ""
    for index, text in enumerate(texts):
        code, _, error = check(folder, text)
        if code == 0:
            return index, said
        said = said or error.strip()
    return None, said


def check(folder, text):
    """What the agent in ``folder`` says of a settings file with this text."""
    place = node.UNDO + "/agent.yaml"
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return node.agent(folder, "config", "check", "--config", place, cache=node.UNDO + "/cache")
