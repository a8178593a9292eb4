"""One call of ``heterofleet fleet``: what was wished becomes an order, the order a run, the run a report."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.cli.context import Invocation, confirm
from runtime.cli.errors import MASKER, CliError, ExitCode
from runtime.fleet import environ, waves
from runtime.fleet.actions import CONTROL_PLANE, Action
from runtime.fleet.conduct import End, conduct
from runtime.fleet.folder import Folder, private_folder
from runtime.fleet.interrupts import Interrupts
from runtime.fleet.inventory import Inventory, read_inventory
from runtime.fleet.job import Order
from runtime.fleet.progress import Progress
from runtime.fleet.project import Play, find_project, read_plays
from runtime.fleet.report import begin_detail, end_detail, print_report
from runtime.fleet.screen import choose, say
from runtime.fleet.summary import document, summarise
from runtime.fleet.telling import masked, recorder, said_by_settings
from runtime.fleet.variables import RELEASE, parse_set
from runtime.protocol.times import now, to_wire


@dataclass(frozen=True)
class Wish:
    """What the command line said."""

    action: Action
    inventory: Sequence[str] = ()
    limit: str | None = None
    check: bool = False
    diff: bool = False
    variables: Sequence[str] = ()
    project: Path | None = None
    verbosity: int = 0
    wave: Sequence[int | str] | None = None
    allow_dirty: bool = False
    release: str | None = None
    yes: bool = False


def carry_out(call: Invocation, wish: Wish) -> int:
    """The command's exit code."""
    form, run_id = call.output, str(uuid.uuid4())
    project = find_project(wish.project)
    sources, variables = _sources(wish), _variables(wish)
    with private_folder(os.environ) as folder, _without_secrets(project, folder) as beside:
        inventory = read_inventory(sources, wish.limit, project / "playbooks", {**os.environ, **beside}, project)
        hosts = list(inventory.groups.get(wish.action.group, ()))
        if not hosts:
            limited = f" that --limit {wish.limit} leaves" if wish.limit is not None else ""
            raise CliError(f"the inventory has no host in the group {wish.action.group}{limited}", ExitCode.USAGE)
        MASKER.add_all(masked(inventory))
        if wish.action.asks is not None and not wish.check:
            confirm(wish.action.asks.format(hosts=f"{len(hosts)} host{'s' * (len(hosts) != 1)}"), wish.yes)
        playbook = project / "playbooks" / wish.action.playbook
        if not playbook.is_file():
            raise CliError(f"{project} has no playbooks/{wish.action.playbook}", ExitCode.USAGE)
        order = Order(
            project,
            playbook,
            sources,
            wish.limit,
            {**said_by_settings(call, inventory), **variables, "fleet_stop_file": str(folder.stop)},
            beside,
            check=wish.check,
            diff=wish.diff,
            verbosity=wish.verbosity,
        )
        progress = _progress(wish.action, variables, inventory, hosts, read_plays(playbook))
        return _run(call, wish, order, folder, progress, hosts, inventory, run_id, form)


def _run(
    call: Invocation,
    wish: Wish,
    order: Order,
    folder: Folder,
    progress: Progress,
    hosts: list[str],
    inventory: Inventory,
    run_id: str,
    form: str,
) -> int:
    # A dry run changes nothing, the control plane's events included.
    told = recorder(call, inventory, silent=wish.check, makes_token=wish.action is CONTROL_PLANE)
    with Interrupts() as interrupts:
        told.begin(begin_detail(wish.action, run_id, hosts))
        began = to_wire(now())
        end = conduct(order, folder, progress, choose(sys.stderr.isatty()), interrupts)
        summary = summarise(wish.action, progress, end.rc, end.stop)
        stop = end.stop.value if end.stop is not None else None
        told.end(end_detail(wish.action, run_id, summary, end.seconds, stop))
    body = document(
        run_id,
        wish.action,
        summary,
        progress,
        check=wish.check,
        interrupted=stop,
        started_at=began,
        seconds=round(end.seconds, 1),
        recorded={"started": told.began, "ended": told.ended},
    )
    compared = str(progress.verdict.get("text") or "")
    print_report(form, body, summary, wish.action, end.seconds, compared)
    _say_faults(end)
    return summary.exit_code


def _sources(wish: Wish) -> list[str]:
    """Inventories as whole paths: Ansible is started in the project's folder."""
    given = wish.inventory or [one for one in os.environ.get("ANSIBLE_INVENTORY", "").split(":") if one]
    if not given:
        raise CliError("no inventory given; give -i PATH (or ANSIBLE_INVENTORY)", ExitCode.USAGE)
    found = []
    for source in given:
        if "," in source:  # a list of hosts
            found.append(source)
        elif Path(source).expanduser().exists():
            found.append(str(Path(source).expanduser().absolute()))
        else:
            raise CliError(f"-i {source}: there is no such file", ExitCode.USAGE)
    return found


def _variables(wish: Wish) -> dict[str, Any]:
    found = parse_set(wish.variables)
    if wish.wave is not None:
        found["fleet_wave"] = list(wish.wave)
    if wish.allow_dirty:
        found["fleet_allow_dirty"] = True
    if wish.release is not None:
        found[RELEASE] = wish.release
    return found


def _progress(
    action: Action, given: Mapping[str, Any], inventory: Inventory, hosts: Sequence[str], plays: Sequence[Play]
) -> Progress:
    """``given``: variables of the command line, which win over the inventory's."""
    serial = [play for play in plays if play.serial is not None]
    wave = given["fleet_wave"] if "fleet_wave" in given else inventory.said("fleet_wave", hosts)
    # How many waves there are is known of plays over the whole group only.
    known = serial and all(play.hosts == action.group for play in serial)
    sizes = waves.planned(serial[0].serial, len(hosts), wave) if known and len(serial) == 1 else None
    return Progress(hosts, [play.name for play in serial], sizes)


@contextlib.contextmanager
def _without_secrets(project: Path, folder: Folder) -> Iterator[Mapping[str, str]]:
    """Our own environment without what may be a secret, since ansible-runner takes it as it is; gives what is set
    beside it."""
    gone = {name: os.environ.pop(name) for name in environ.secret_names(os.environ)}
    try:
        yield environ.for_ansible(project, folder.root, folder.sockets, os.environ)
    finally:
        os.environ.update(gone)


def _say_faults(end: End) -> None:
    if end.left:
        say(f"these processes do not end, the kernel holds them: {', '.join(map(str, end.left))}")
    if end.faults:
        say(f"{len(end.faults)} fault(s) of this program while it showed the run; the run went on. The first:")
        say(end.faults[0])
