"""Runs on the controller: what Ansible knows comes as JSON on standard input, the findings leave as JSON.

    check.py settings    inventory and settings alone
    check.py report      these, and what was seen of every host

``{"table", "findings", "refused": {host: [sentence, ...]}, "stopped": [sentence, ...], "short"}``: what is to be shown,
for people and as data, which hosts are refused and why, why nothing may be done at all, and that in one sentence.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(PROJECT))

from build_files import read_builds  # noqa: E402 (the project is found first)
from control_planes import Asker  # noqa: E402
from finding import FLEET, Finding  # noqa: E402
from inventory_rules import Host, hosts_of, inventory_findings  # noqa: E402
from known_names import known_names  # noqa: E402
from node_rules import Here, Seen, node_findings  # noqa: E402
from probe import read_probe  # noqa: E402
from secret_files import secret_or_none  # noqa: E402
from table import render  # noqa: E402


def settings(told: Mapping[str, Any]) -> dict[str, Any]:
    return answer(inventory_findings(told), len(told["hosts"]))


def report(told: Mapping[str, Any]) -> dict[str, Any]:
    known = {host.name: host for host in hosts_of(told)}
    seen = [of_host(one, known, told) for one in told["seen"]]
    names = {one.host for one in seen}
    found = [one for one in inventory_findings(told) if one.host in names or one.host == FLEET]
    given, need = told["given"], told["need"]
    ca_file = str(Path(given["ca_file"]).expanduser()) if given["ca_file"] else ""
    asker = Asker(secret_or_none(given["token_file"]), ca_file, needs_token="token" in need)
    keys = {host.value("server_url"): host.value("api_key_file") for host in known.values() if host.name in names}
    if "key" in need and not any(one.check == "server URL" for one in found):
        for url, file in keys.items():
            asker.ask(str(url), secret_or_none(file))
    manifest = read_builds(given["builds_dir"]) if "builds" in need else None
    builds = {arch: build.size for arch, build in manifest.builds.items()} if manifest else None
    found += asker.findings + node_findings(seen, Here(asker.ids, asker.nodes, builds))
    return answer(found, len(seen))


def of_host(one: Mapping[str, Any], known: Mapping[str, Host], told: Mapping[str, Any]) -> Seen:
    """What was registered on a host, as the rules take it."""
    host = known.get(one["host"]) or Host(one["host"], {}, told["given"])
    look, trouble = None, ""
    try:
        look = json.loads(one["look"].get("stdout") or "null")
    except ValueError:
        trouble = "an answer that is not JSON"
    if look is None:
        words = str(one["look"].get("stderr") or one["look"].get("msg") or "").strip().splitlines()
        trouble = trouble or (words[-1][:300] if words else "")
    return Seen(one["host"], read_probe(one["probe"]), look, trouble, str(host.value("server_url")), host.told)


def answer(findings: Sequence[Finding], hosts: int) -> dict[str, Any]:
    refused: dict[str, list[str]] = defaultdict(list)
    for one in findings:
        if one.refuses and one.host != FLEET:
            refused[one.host].append(one.sentence)
    stopped = [one.sentence for one in findings if one.refuses and one.host == FLEET]
    return {
        "table": render(findings, hosts) if findings else "",
        # Of the fleet as a whole: no host.
        "findings": [asdict(one) | {"host": one.host or None} for one in findings],
        "refused": refused,
        "stopped": stopped,
        "short": stopped[0] if len(stopped) == 1 else _in_short(findings),
    }


def _in_short(findings: Sequence[Finding]) -> str:
    names = dict.fromkeys(one.check for one in findings if one.refuses and one.host == FLEET)
    return f"nothing is done because of {', '.join(names)}; the findings say what to do" if names else ""


def failed(error: Exception) -> dict[str, Any]:
    """A fault of this program, by its place: what was in its hands may be a secret, so Ansible shows nothing of it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    sentence = f"the check itself failed: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
    return {"table": sentence, "findings": [], "refused": {}, "stopped": [sentence], "short": sentence}


def main() -> None:
    try:
        told = json.load(sys.stdin)
        told["known"] = known_names(PROJECT)
        said = {"settings": settings, "report": report}[sys.argv[1]](told)
    except Exception as error:
        said = failed(error)
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
