"""An Ansible callback that writes each host's result of each task as one line of JSON into ``HF_EVENTS``.

What a user sees is Ansible's own output beside it; tests read this file instead of taking that text apart.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
    name: hf_events
    type: aggregate
    short_description: Results of a play as lines of JSON, for the tests
    description:
      - Writes each host's result of each task as one line of JSON into the file that HF_EVENTS names.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "hf_events"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._file = open(os.environ["HF_EVENTS"], "a", buffering=1)  # noqa: PTH123, SIM115 (open to the end)

    def _write(self, **event: Any) -> None:
        self._file.write(json.dumps(event, default=str) + "\n")

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._write(event="play", play=play.get_name())

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._write(event="task", task=task.get_name())

    def _result(self, status: str, result: Any, **more: Any) -> None:
        said = result.result
        self._write(
            event="result",
            status=status,
            host=result.host.get_name(),
            task=result.task.get_name(),
            action=result.task.action,
            changed=bool(said.get("changed", False)),
            said=said,
            **more,
        )

    def v2_runner_on_ok(self, result: Any) -> None:
        self._result("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._result("failed", result, ignored=ignore_errors)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._result("skipped", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._result("unreachable", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._write(event="stats", hosts={host: stats.summarize(host) for host in sorted(stats.processed)})
