"""What every command shares: the options for address, token and output, given before or after the subcommand."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, TypeVar

import click

from runtime.cli.client import Client
from runtime.cli.errors import MASKER, CliError, ExitCode
from runtime.cli.output import say
from runtime.cli.settings import CliSettings, connection, read_settings
from runtime.protocol.masking import set_up_logging
from runtime.protocol.settings import Loaded

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Invocation:
    """One run of the program: what was given on the command line, and what follows from it."""

    overrides: dict[str, Any] = field(default_factory=dict)
    verbose: int = 0

    @functools.cached_property
    def loaded(self) -> Loaded[CliSettings]:
        loaded, warnings = read_settings(self.overrides, os.environ)
        for warning in warnings:
            say(f"warning: {warning}")
        return loaded

    @property
    def output(self) -> str:
        """``table``, ``json`` or ``yaml``."""
        return self.loaded.settings.output

    @functools.cached_property
    def client(self) -> Client:
        to, warnings = connection(self.loaded.settings, self.loaded.origins)
        for warning in warnings:
            say(f"warning: {warning}")
        return Client(to)


def invocation(context: click.Context) -> Invocation:
    """The invocation this context belongs to."""
    return context.find_root().ensure_object(Invocation)


def _keep(context: click.Context, parameter: click.Parameter, value: Optional[str]) -> Optional[str]:
    if value is not None and parameter.name is not None:
        invocation(context).overrides[parameter.name] = value
    return value


def _set_up_verbose(context: click.Context, _: click.Parameter, count: int) -> None:
    call = invocation(context)
    call.verbose += count
    if call.verbose:
        set_up_logging(MASKER, call.verbose)


def verbose_option(name: str) -> Callable[[F], F]:
    """``--verbose``, everywhere; before the subcommand ``-v`` as well (behind it, that is a task's volume)."""
    return click.option(
        name,
        count=True,
        expose_value=False,
        callback=_set_up_verbose,
        help="Say what is asked of whom, on standard error; twice: what the HTTP library does, too.",
    )


def global_options(function: F) -> F:
    """--server, --token-file, -o and --verbose; of the first three the one nearest to the end of the line wins."""
    for decorator in (
        verbose_option("--verbose"),
        click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "json", "yaml"]),
            expose_value=False,
            callback=_keep,
            help="Form of standard output.  [default: table]",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help="File with the operator token (or HETEROFLEET_TOKEN).",
        ),
        click.option(
            "--server",
            "server_url",
            metavar="URL",
            expose_value=False,
            callback=_keep,
            help="Address of the control plane (or HETEROFLEET_SERVER_URL).",
        ),
    ):
        function = decorator(function)
    return function


def remote(function: F) -> F:
    """A command that asks the control plane: it takes the global options and gets the Invocation first."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(invocation(click.get_current_context()), *args, **kwargs)

    return global_options(run)  # type: ignore[return-value]


def confirm(question: str, yes: bool) -> None:
    """Ask unless ``--yes``; CliError (declined) on anything but yes, also where nobody can answer."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        raise CliError("nobody answered, so nothing was done; give --yes to go on unasked", ExitCode.DECLINED) from None
    if not agreed:
        raise CliError("declined, nothing was done", ExitCode.DECLINED)
