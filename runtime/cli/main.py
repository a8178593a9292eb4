"""``heterofleet``: the operator's command line.

Everything but the mounted groups talks HTTP only. ``server``, ``artifacts`` and ``fleet`` belong to other packages
with heavier needs; they are imported when they are called, and not to list a node.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn, Optional

import click

from runtime.cli.commands.events import events
from runtime.cli.commands.gpus import gpus
from runtime.cli.commands.nodes import nodes
from runtime.cli.commands.tasks import tasks
from runtime.cli.context import global_options, verbose_option
from runtime.cli.errors import MASKER, CliError, ExitCode
from runtime.protocol import PROTOCOL
from runtime.protocol.build import this_build

MOUNTED = {
    "server": ("runtime.server.command", "server", "Run and look after the control plane on this machine."),
    "artifacts": ("runtime.artifacts.command", "artifacts", "Build and verify the agent's builds."),
    "fleet": ("runtime.fleet.command", "fleet", "Bring agents to many nodes, by Ansible."),
}
"""Command -> module, attribute, help. Each has an extra of its name."""


class Root(click.Group):
    """A group whose mounted commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *MOUNTED])

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        if cmd_name not in MOUNTED:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = MOUNTED[cmd_name]
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise CliError(
                f"`heterofleet {cmd_name}` needs the module {error.name}, which is not installed here; "
                f"install the extra: heterofleet[{cmd_name}]"
            ) from None
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, MOUNTED[name][2] if name in MOUNTED else self.commands[name].get_short_help_str(limit=60))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(f"{this_build()}, protocol {PROTOCOL}", prog_name="heterofleet")
@global_options
@verbose_option("-v")
def root() -> None:
    """GPU work on a fleet of machines that nobody can dial into.

    Address and token come from options, from HETEROFLEET_SERVER_URL and HETEROFLEET_TOKEN, or from
    ~/.config/heterofleet/config.yaml; --server, --token-file and -o stand before or after the subcommand.

    Exit codes: 0 done, 1 failed, 2 usage, 3 not authorised, 4 unreachable, 5 not found, 6 refused or
    conflict, 7 timed out waiting, 8 declined.
    """


for _command in (nodes, gpus, tasks, events):
    root.add_command(_command)


CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""How a full or broken disk refuses the output."""


def main(arguments: Optional[Sequence[str]] = None) -> NoReturn:
    """Run, and end the process with the command's exit code."""
    try:
        result = root.main(arguments, prog_name="heterofleet", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(ExitCode.USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("heterofleet: interrupted; what was started on the fleet goes on", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has enough. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.FAILED)
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"heterofleet: the output cannot be written ({error.strerror}); it is not complete", err=True)
        sys.exit(ExitCode.FAILED)
    except Exception:
        # A fault of ours. A traceback may show what a library was given.
        click.echo(MASKER.text(traceback.format_exc()), err=True, nl=False)
        sys.exit(ExitCode.FAILED)
    sys.exit(result if isinstance(result, int) else 0)


if __name__ == "__main__":
    main()
