"""What an earlier installation left on a node, and what it means for the next one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from finding import Finding

PROGRAM = "/opt/heterofleet/current/heterofleet-agent"


def findings(host: str, look: Mapping[str, Any]) -> Iterator[Finding]:
    """Only what stands in the way refuses; what the next run repairs is said."""
    here = look["installed"]
    if here["opt"] in ("link", "file"):
        found = f"a link to {here['opt_target']}" if here["opt"] == "link" else "a file"
        yield Finding(
            host, "installation", f"{found} at /opt/heterofleet", "a folder, or nothing",
            "move it out of the way (mount --bind puts the folder on another disk)",
        )  # fmt: skip
    elif here["cut"]:
        yield Finding(
            host, "installation", "what a run left that was cut short", "nothing half done",
            "nothing: this run takes it back, or ends it", refuses=False,
        )  # fmt: skip
    elif not here["whole"] and (here["current"] or here["unit"]):
        what = f"{PROGRAM} missing or not executable" if here["current"] else "a unit without a release"
        yield Finding(
            host, "installation", what, "a whole installation, or none",
            "nothing: this run installs it whole; force_upgrade.yml levels whatever else is in the way", refuses=False,
        )  # fmt: skip
    for copy in look["copies"]:
        yield Finding(
            host, "copies", f"another heterofleet-agent, {copy}", "none beside the release's own",
            "remove it: the service does not run it, and a person would", refuses=False,
        )  # fmt: skip
