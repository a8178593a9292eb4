"""The ports as last seen, kept fresh by a loop of its own: no beat waits for a driver that hangs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, Optional

from runtime.agent.hardware.infiniband import sysfs
from runtime.agent.hardware.infiniband.adapters import hcas_of
from runtime.agent.hardware.infiniband.look import LOOK_S, look
from runtime.agent.hardware.tools import ToolError, ToolRunner
from runtime.agent.loop import Loop
from runtime.protocol.hardware import Hca

log = logging.getLogger(__name__)

INTERVAL_S = 30.0


class AdapterWatch:
    """``fabrics``: adapter -> fabric. ``on_first`` is called once, when the first look is done. :meth:`snapshot` never
    blocks."""

    def __init__(
        self,
        runner: ToolRunner,
        fabrics: Mapping[str, str],
        *,
        root: Path = sysfs.ROOT,
        interval_s: float = INTERVAL_S,
        deadline_s: float = LOOK_S,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        self._runner = runner
        self._fabrics = fabrics
        self._root = root
        self._deadline_s = deadline_s
        self._on_first: Optional[Callable[[], None]] = on_first
        self._latest: Optional[list[Hca]] = None
        self._failing = False
        self.loop = Loop("adapters", interval_s, self.refresh)

    def snapshot(self) -> Optional[list[Hca]]:
        """None: not looked at, or without an answer at the last look; that is not "none"."""
        return self._latest

    def refresh(self) -> None:
        try:
            self._latest = hcas_of(look(self._runner, self._root, self._deadline_s), self._fabrics)
        except ToolError as error:
            self._latest = None
            if not self._failing:
                log.warning("InfiniBand ports are not known: %s", error)
            self._failing = True
        else:
            self._failing = False
        first, self._on_first = self._on_first, None
        if first is not None:
            first()
