"""One run of a playbook through ansible-runner, in a thread of its own.

Nothing that is shown or decided happens in ansible-runner's callback: it hands each event on and keeps none, so that
neither a fault of ours ends the play nor an event is written down.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.fleet.folder import Folder

SETTINGS = {
    "pexpect_timeout": 1,
    "pexpect_use_poll": True,
    "suppress_ansible_output": True,
    "suppress_output_file": True,
}
"""Of ansible-runner: nothing that Ansible prints is written down."""


@dataclass(frozen=True)
class Order:
    """What Ansible is asked to do. ``variables`` hold no secret: they are written into the folder in clear."""

    project: Path
    playbook: Path
    inventory: Sequence[str]
    limit: str | None
    variables: Mapping[str, Any]
    environ: Mapping[str, str]
    check: bool = False
    diff: bool = False
    verbosity: int = 0


class Job:
    """``events`` gives what Ansible says, then None. ``rc`` is known then; None: it was not left to end."""

    def __init__(self, order: Order, folder: Folder) -> None:
        self.events: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self.rc: int | None = None
        self.fault: BaseException | None = None
        self._order, self._folder = order, folder
        self._thread = threading.Thread(target=self._run, name="ansible", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self.rc = self._play()
        except BaseException as error:
            self.fault = error
        finally:
            self.events.put(None)

    def _play(self) -> int | None:
        import ansible_runner  # type: ignore[import-untyped]

        order = self._order
        words = [*(["--check"] if order.check else []), *(["--diff"] if order.diff else [])]
        variables = self._folder.root / "variables.json"
        variables.write_text(json.dumps(dict(order.variables)))
        words += ["-e", f"@{variables}"]
        # In a file of the folder: what is given as an argument ansible-runner replaces by what its file says, or not.
        settings = self._folder.runner / "env"
        settings.mkdir(0o700)
        (settings / "settings").write_text(json.dumps(SETTINGS))
        done = ansible_runner.run(
            private_data_dir=str(self._folder.runner),
            project_dir=str(order.project),
            playbook=str(order.playbook),
            inventory=list(order.inventory),
            limit=order.limit,
            cmdline=" ".join(words),
            envvars=dict(order.environ),
            verbosity=order.verbosity or None,
            suppress_env_files=True,
            quiet=True,
            fact_cache_type="memory",
            rotate_artifacts=1,
            event_handler=self._take,
            cancel_callback=lambda: False,
        )
        return done.rc if done.status in ("successful", "failed") else None

    def _take(self, event: Mapping[str, Any]) -> bool:
        self.events.put(dict(event))
        return False
