"""Before the new settings land: is the build what was wanted, and does it take them?"""

import os

import node
import record
import undo
from level import set_aside


def choose(run, release, sha256, arch, paths, texts, level=False):
    """Which of these settings the agent takes: the first. ``paths``: where each comes from, the present ones first.

    For ``level`` it is asked in a cache of its own: the host's may be broken, and an agent may run from it.
    """
    with node.locked():
        undo.need_own(run)
        folder = node.RELEASES + "/" + release
        try:
            undo.need_whole(folder, sha256)
            undo.need_arch(folder, arch)
        except node.Refusal as error:
            raise undo.failed(error.code, str(error)) from None
        index, said = _first_that_it_takes(folder, texts, node.UNDO + "/cache" if level else node.CACHE)
        if index is None:
            raise undo.failed(node.STEP, "the agent does not take these settings: " + said)
        path = paths[index]
        if index and os.path.lexists(node.SETTINGS):
            node.warn("the agent did not take the settings: " + said)
            set_aside(node.SETTINGS)
        if index and path == os.devnull:
            node.warn("of the settings only the address, the key, the node's id and labels are left")
        elif path not in (node.SETTINGS, os.devnull):
            node.warn(f"the settings are those of {path} now")
        record.keep_warnings()
        return {"index": index}


def _first_that_it_takes(folder, texts, cache):
    """(which one, what the agent said of the very first)."""
    said, place = "", node.UNDO + "/agent.yaml"
    for index, text in enumerate(texts):
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        code, _, error = node.agent(folder, "config", "check", "--config", place, cache=cache)
        if code == 0:
            return index, said
        said = said or error.strip()
    return None, said
