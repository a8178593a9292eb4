"""What of the builds lies in folders of this host, as JSON: FOLDER... Any Python from 3.6 on; changes nothing.

``{"missing": [folder], "files": {path: {"mode", "md5", "sha256"}}, "named": [path], "left": [path]}``: ``named`` are
the files of the manifest that lies there, ``left`` what a copy left that was cut off an hour ago or earlier.
"""

import hashlib
import json
import stat
import sys
import time
from pathlib import Path

NAMES = ("heterofleet-agent-*", "manifest.json", "deploy-agent-all-in-one.sh")


def md5():
    """None on a host under FIPS rules whose Python knows no way around them."""
    for words in ({"usedforsecurity": False}, {}):
        try:
            return hashlib.new("md5", **words)  # noqa: S324 (sees change; sha256 is trusted)
        except (TypeError, ValueError):  # no such word before Python 3.9; not allowed
            continue
    return None


def look(path):
    """Something else than an ordinary file has nothing that is right."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return {"mode": None, "md5": None, "sha256": None}
    trust, change = hashlib.sha256(), md5()
    with path.open("rb") as opened:
        for piece in iter(lambda: opened.read(1 << 18), b""):
            trust.update(piece)
            if change:
                change.update(piece)
    return {
        "mode": f"0{stat.S_IMODE(found.st_mode):o}",
        "md5": change.hexdigest() if change else None,
        "sha256": trust.hexdigest(),
    }


def named(folder):
    try:
        builds = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["builds"]
        return [str(folder / build["file"]) for build in builds.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # none, or none that anybody could use


def old(path):
    return path.lstat().st_mtime < time.time() - 3600


answer = {"missing": [], "files": {}, "named": [], "left": []}
for place in map(Path, sys.argv[1:]):
    if not place.is_dir():
        answer["missing"].append(str(place))
        continue
    answer["named"] += named(place)
    for name in NAMES:
        answer["files"].update({str(path): look(path) for path in place.glob(name)})
        answer["left"] += [str(path) for path in place.glob(".ansible_tmp*" + name) if old(path)]
json.dump(answer, sys.stdout)
