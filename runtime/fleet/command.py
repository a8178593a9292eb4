"""``heterofleet fleet``: deploy, upgrade, roll back and verify agents on the nodes of an inventory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from runtime.cli.context import Invocation, remote
from runtime.fleet import actions, waves
from runtime.fleet.actions import Action
from runtime.fleet.run import Wish, carry_out

F = TypeVar("F", bound=Callable[..., Any])


def _wave(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[int | str] | None:
    try:
        return waves.parse(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _options(action: Action) -> Callable[[F], F]:
    """What every action takes; those that change something can be tried, those that ask take --yes."""

    def decorate(function: F) -> F:
        chosen: list[Callable[[F], F]] = [
            click.option(
                "-i",
                "--inventory",
                multiple=True,
                metavar="PATH",
                help="Inventory of the fleet: a file, a folder or a script; may be given several times.",
            ),
            click.option("-l", "--limit", metavar="PATTERN", help="Only hosts of this pattern of Ansible's."),
            click.option(
                "--set",
                "variables",
                multiple=True,
                metavar="NAME=VALUE",
                help="A variable for the playbooks; never a secret: those are files.",
            ),
            click.option(
                "--project",
                type=click.Path(file_okay=False, path_type=Path),
                metavar="DIR",
                help="A checkout with playbooks/, roles/ and templates/.  [default: what is installed]",
            ),
            click.option(
                "-v", "verbosity", count=True, help="Show Ansible's own output; twice and thrice: more of it."
            ),
        ]
        if action.changes:
            chosen[2:2] = [
                click.option("--check", "--dry-run", is_flag=True, help="Change nothing; say what would change."),
                click.option("--diff", is_flag=True, help="Show how files differ."),
            ]
        if action.asks:
            chosen.append(click.option("--yes", is_flag=True, help="Do not ask."))
        for option in reversed(chosen):
            function = option(function)
        return function

    return decorate


WAVE = click.option(
    "--wave",
    callback=_wave,
    metavar="SIZES",
    help="How many hosts go together, such as 1,10%,100%; the next wave begins when one is well.",
)
ALLOW_DIRTY = click.option("--allow-dirty", is_flag=True, help="Take builds that no commit describes.")


@click.group()
def fleet() -> None:
    """Agents on many nodes, by Ansible.

    The hosts stand in an inventory (-i). Secrets are files that the inventory names; none is given here. What is shown
    while it goes on stands on standard error, the outcome on standard output. Ctrl-C lets the wave that is under way be
    finished and begins no other; once more ends at once.

    Exit codes: 0 all well, 1 a host failed or differs, 2 usage, 3 not authorised, 4 a host cannot be reached,
    6 refused before any change, 8 declined, 130 stopped by Ctrl-C.
    """


@fleet.command()
@_options(actions.DEPLOY)
@WAVE
@ALLOW_DIRTY
@remote
def deploy(call: Invocation, **given: Any) -> int:
    """Bring the agent to every host."""
    return carry_out(call, Wish(actions.DEPLOY, **given))


@fleet.command()
@_options(actions.UPGRADE)
@WAVE
@ALLOW_DIRTY
@remote
def upgrade(call: Invocation, **given: Any) -> int:
    """Upgrade in waves; stop at the first that does not come back well, and put its hosts back."""
    return carry_out(call, Wish(actions.UPGRADE, **given))


@fleet.command("force-upgrade")
@_options(actions.FORCE_UPGRADE)
@WAVE
@remote
def force_upgrade(call: Invocation, **given: Any) -> int:
    """Level every host to the staged build, whatever is there: broken, dirty, half installed, newer."""
    return carry_out(call, Wish(actions.FORCE_UPGRADE, **given))


@fleet.command()
@_options(actions.ROLLBACK)
@WAVE
@click.option("--release", metavar="RELEASE", help="One of the releases that are kept.  [default: the previous one]")
@remote
def rollback(call: Invocation, **given: Any) -> int:
    """Put hosts back to a release that they still have."""
    return carry_out(call, Wish(actions.ROLLBACK, **given))


@fleet.command()
@_options(actions.VERIFY)
@remote
def verify(call: Invocation, **given: Any) -> int:
    """Compare builds, control plane, mirror and every host; say who differs."""
    return carry_out(call, Wish(actions.VERIFY, **given))


@fleet.command()
@_options(actions.UNINSTALL)
@remote
def uninstall(call: Invocation, **given: Any) -> int:
    """Take the agent off hosts. Running task containers stay, unless told otherwise."""
    return carry_out(call, Wish(actions.UNINSTALL, **given))


@fleet.command("control-plane")
@_options(actions.CONTROL_PLANE)
@remote
def control_plane(call: Invocation, **given: Any) -> int:
    """Install or upgrade the control plane on its host."""
    return carry_out(call, Wish(actions.CONTROL_PLANE, **given))
