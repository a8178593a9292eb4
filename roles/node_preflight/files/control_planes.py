"""What the controller itself hears of the control planes that the hosts are to have."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finding import FLEET, Finding

# What the installation scripts ask with, so that both sides judge an answer alike.
HELPER = Path(__file__).resolve().parents[3] / "templates" / "_helper.py"


def tools() -> dict[str, Any]:
    """The functions of the scripts' helper, without its last line, which runs one of them."""
    source = HELPER.read_text("utf-8").rpartition("\nglobals()")[0]
    found: dict[str, Any] = {"__name__": "helper"}
    exec(compile(source, str(HELPER), "exec"), found)  # noqa: S102 (a file of this project)
    return found


class Asker:
    """Asks each address once, and gathers findings of the whole fleet."""

    def __init__(self, token: str | None, ca_file: str, *, needs_token: bool = True) -> None:
        self._token, self._ca_file, self._tools, self._needs_token = token, ca_file, tools(), needs_token
        self.ids: dict[str, str] = {}
        self.nodes: dict[str, list[Mapping[str, Any]]] = {}
        self.findings: list[Finding] = []

    def ask(self, url: str, key: str | None) -> None:
        """Whose address it is, and with a token which nodes it knows."""
        said = self._call(f"{url.rstrip('/')}/api/v1/agent/preflight", {"X-API-Key": key or "none"}, "control plane")
        if said is not None:
            self.ids[url] = said[0]
        if said is not None and self._token:
            listed = self._call(f"{url.rstrip('/')}/api/v1/nodes", {"Authorization": f"Bearer {self._token}"}, "token")
            if listed is not None and isinstance(listed[1], dict):
                self.nodes[url] = listed[1].get("nodes") or []

    def _call(self, url: str, headers: Mapping[str, str], check: str) -> tuple[str, Any] | None:
        """(id of the control plane, body). A refused key still says who refused it; each node says that for itself."""
        try:
            with self._tools["fetch"](url, self._ca_file, dict(headers)) as answer:
                return answer.headers["X-Control-Plane-Id"] or "", json.loads(answer.read())
        except urllib.error.HTTPError as error:
            seen = error.headers.get("X-Control-Plane-Id")
            if error.code == 401 and seen and check == "control plane":
                return seen, None
            words = self._tools["refusal"](error, url)
        except ValueError:
            words = f"{url} answered, and not as a HeteroFleet control plane answers"
        except self._tools["FAILURES"] as error:
            words = f"cannot reach {url}: {self._tools['why'](error, self._ca_file)}"
        wanted, do = "an answer to the controller", "the roles ask it, too: start it, or correct fleet_server_url"
        if check == "token":
            wanted, do = "the list of nodes", "put a valid token of the role admin into the file of fleet_token_file"
        refuses = check != "token" or self._needs_token
        self.findings.append(Finding(FLEET, check, words, wanted, do, refuses))
        return None
