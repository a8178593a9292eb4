# Empties the cache of unpacked builds but for what the builds named here are made of: CACHE BUILD...
# A build names its parts by hashes; the folders of the cache are called like them. The text stands between
# single quotes in the scripts, so it contains none.
import json
import shutil
import sys
import zipfile
from pathlib import Path

PARTS = ("venvs", "unzipped_pexes", "user_code", "installed_wheels", "bootstraps")
SHORT = "s"  # short names of virtual environments, each with a link to one


def hashes(build):
    """Names of the folders that this build is unpacked into. A file that is no build has none."""
    try:
        with zipfile.ZipFile(build) as archive:
            info = json.loads(archive.read("PEX-INFO"))
        return {info["pex_hash"], info["code_hash"], info["bootstrap_hash"], *info["distributions"].values()}
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return set()


def prune(cache, keep):
    for path in [path for part in PARTS for path in (cache / part).glob("*/*")]:
        # A lock is called like its folder, between a dot and ".atomic_directory.lck".
        if path.name != SHORT and path.name.strip(".").partition(".")[0] not in keep:
            remove(path)
    for path in (cache / "venvs").glob("*/" + SHORT + "/*"):
        if path.is_dir() and not (path / "venv").exists():
            remove(path)


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


kept = set().union(*map(hashes, sys.argv[2:]))
if kept:
    prune(Path(sys.argv[1]), kept)
