"""What work is here, and whose: what depends on a node id, and whether the journal is this machine's own."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.driver import LABEL_NODE
from runtime.agent.drivers.errors import DriverError
from runtime.agent.link.identity import MachineParts, contradicts
from runtime.agent.tasks.engines import fact_of
from runtime.protocol.states import Driver as DriverName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.agent.drivers.driver import Driver
    from runtime.agent.tasks.journal import Journal

log = logging.getLogger(__name__)

FACT_MACHINE = "machine"


def work_of(node_id: str, journal: Journal, drivers: Mapping[DriverName, Driver]) -> Optional[str]:
    """A sentence about the work of ``node_id`` that is here; None when there is none.

    Asks the engines now. One that does not answer may hold anything, unless none was ever seen here.
    """
    claims, undelivered = len(journal.claims()), journal.undelivered()
    if claims or undelivered:
        return f"{claims} claim(s) and {undelivered} undelivered result(s) of {node_id} are still here"
    containers = []
    for name, driver in drivers.items():
        try:
            containers += [seen for seen in driver.list_own() if seen.labels.get(LABEL_NODE) == node_id]
        except DriverError as error:
            if journal.lost or journal.fact(fact_of(name)) is not None:
                return f"whether containers of {node_id} are still here is unknown ({error})"
    if containers:
        return f"{len(containers)} container(s) of {node_id} are still here (the first is {containers[0].id[:12]})"
    return None


def keep_to_machine(journal: Journal, parts: MachineParts, *, copied: bool) -> None:
    """Set aside what another machine has written: its claims are its own, and it may be alive.

    ``copied``: the identity beside the journal is known to come from elsewhere.
    """
    stored = journal.fact(FACT_MACHINE)
    known = json.loads(stored) if stored is not None else [None, None]
    if copied or contradicts(known, parts):
        count = journal.set_aside()
        log.warning("the journal comes from another machine: %d claim(s) in it are left to that one", count)
        known = [None, None]
    journal.save_fact(FACT_MACHINE, json.dumps([now or before for now, before in zip(parts, known)]))
