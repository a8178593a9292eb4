"""``heterofleet tasks run``: a task from flags or a file, and on request its way to the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, Optional

import click

from runtime.cli.context import Invocation, remote
from runtime.cli.errors import Unreachable
from runtime.cli.follow import LogReader, Watcher, end_sentence, exit_code_of
from runtime.cli.output import emit, say
from runtime.cli.task_spec import (
    Spec,
    as_json,
    build,
    parse_env,
    read_env_file,
    read_registry_auth,
    read_spec,
    usage,
    without_secrets,
)
from runtime.cli.terminal import LogOutput
from runtime.cli.values import Duration, HttpHealth, Pair, Port, Size, Volume
from runtime.protocol.problems import wanted_name
from runtime.protocol.routes import TASKS
from runtime.protocol.states import Driver, Kind
from runtime.protocol.vendors import VENDORS, VIRTUAL

KNOWN = (*VENDORS, VIRTUAL)
_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option(
    "-f", "--file", "spec_file", type=click.File("r", "utf-8"), help="Task as YAML or JSON; flags win. - is stdin."
)
@click.option("--id", "task_id", metavar="ID", help="Id of the task.  [default: made here]")
@click.option("--image", metavar="IMAGE")
@click.option("--name", metavar="NAME", help="Name for people.  [default: the image's last word]")
@click.option("--kind", type=click.Choice([kind.value for kind in Kind]))
@click.option("--driver", type=click.Choice([driver.value for driver in Driver]))
@click.option("--gpus", type=click.IntRange(0), metavar="N", help="Number of cards.")
@click.option("--gpu-vendor", metavar="VENDOR", help=f"Cards of this vendor only: {', '.join(KNOWN)}.")
@click.option("--cpus", type=click.FloatRange(0, min_open=True), metavar="N")
@click.option("--memory", type=Size(), help="Limit in MiB, or for example 512m, 8g.")
@click.option("-e", "--env", multiple=True, metavar="K=V", help="K alone takes the value from this environment.")
@click.option("--env-file", type=_PATH, multiple=True, metavar="FILE", help="Lines K=V, as Docker reads them.")
@click.option("-v", "--volume", "volumes", type=Volume(), multiple=True, help="Folder of the node.")
@click.option("-p", "--port", "ports", type=Port(), multiple=True, help="Publish a port of the task on its node.")
@click.option("--label", "labels", type=Pair(), multiple=True)
@click.option("--node", "node_id", metavar="NODE", help="Run on this node only.")
@click.option(
    "--registry-auth-file", type=_PATH, metavar="FILE", help="server, username, password; or a Docker config.json."
)
@click.option("--timeout", type=Duration(), help="Longest run, then exit code 124.")
@click.option("--stop-grace", type=Duration(zero=True), help="From the signal to the kill, when it is stopped.")
@click.option("--max-attempts", type=click.IntRange(1), metavar="N", help="Starts, when the infrastructure ends one.")
@click.option("--health-http", type=HttpHealth(), help="Where the agent asks whether it is well.")
@click.option("--follow", is_flag=True, help="Show the log until the end; exit with the task's own code.")
@click.option("--wait", is_flag=True, help="As --follow, without the log.")
@click.option("--wait-timeout", type=Duration(), help="Stop watching after this long (exit code 7).")
@click.option("--dry-run", is_flag=True, help="Print the request with secrets hidden, and send nothing.")
@click.argument("command", nargs=-1, metavar="[-- CMD...]")
@remote
def run(
    call: Invocation,
    spec_file: Optional[IO[str]],
    follow: bool,
    wait: bool,
    wait_timeout: Optional[float],
    dry_run: bool,
    **flags: Any,
) -> int:
    """Run a task somewhere on the fleet.

    With --follow (or --wait) the exit code is the task's own, 124 when its timeout ended it, 70 when it ended
    without one, and 0 only when it completed.
    """
    spec = spec_of(read_spec(spec_file, spec_file.name) if spec_file else {}, flags)
    _warn_of_vendor(spec)
    if dry_run:
        click.echo(as_json(without_secrets(spec)))
        return 0
    try:
        answer = call.client.post(TASKS, spec, repeatable=True)
    except Unreachable as error:
        if error.sent:
            say(f"whether task {spec['id']} was taken is not known; the same command with --id {spec['id']} is safe")
        raise
    task = answer.body
    for warning in task.get("warnings") or []:
        say(f"warning: {warning.get('detail')} ({warning.get('code')})")
    if not (follow or wait or wait_timeout is not None):
        emit(answer, call.output, lambda body: click.echo(body["id"]))
        return 0
    say(f"task {task['id']} is {task['status']}")
    # With -o json standard output is the API's last word on the task; its log goes where messages go.
    to_error = call.output != "table"
    with LogOutput(err=to_error) as output:
        log = LogReader(call.client, task["id"], output.write) if follow else None
        ended = Watcher(call.client, task["id"], log=log, wait_s=wait_timeout).until_ended()
    emit(ended, call.output, lambda _: None)
    say(end_sentence(ended.body))
    return exit_code_of(ended.body)


def _warn_of_vendor(spec: Spec) -> None:
    """It is no error: the fleet may have agents that know more vendors than this program."""
    gpus = spec.get("gpus")
    vendor = gpus.get("vendor") if isinstance(gpus, dict) else None
    if isinstance(vendor, str) and vendor not in KNOWN:
        say(
            f"warning: found vendor {vendor!r}, wanted {wanted_name(vendor, KNOWN)}; the task waits until a node has a "
            "card of that vendor"
        )


def spec_of(base: Spec, flags: dict[str, Any]) -> Spec:
    """The request from a file's mapping and the parsed flags."""
    env: dict[str, str] = {}
    for path in flags["env_file"]:
        env.update(read_env_file(path, os.environ))
    env.update(parse_env(text, os.environ) for text in flags["env"])
    image = flags["image"] or base.get("image")
    auth_file = flags["registry_auth_file"]
    members = {
        "id": flags["task_id"],
        "image": flags["image"],
        "name": flags["name"],
        "kind": flags["kind"],
        "driver": flags["driver"],
        "cpus": flags["cpus"],
        "memory_mib": flags["memory"],
        "node_id": flags["node_id"],
        "timeout_s": flags["timeout"],
        "stop_grace_s": flags["stop_grace"],
        "max_attempts": flags["max_attempts"],
        "health": flags["health_http"],
        "registry_auth": read_registry_auth(auth_file, image) if auth_file else None,
        "command": list(flags["command"]) or None,
    }
    gpus = {"count": flags["gpus"] or None, "vendor": flags["gpu_vendor"]}
    if flags["gpus"] == 0:
        if flags["gpu_vendor"]:
            raise usage("--gpus 0 and --gpu-vendor contradict each other; leave one out")
        base = {key: value for key, value in base.items() if key != "gpus"}
    spec = build(
        base,
        members=members,
        env=env,
        labels=dict(flags["labels"]),
        volumes=flags["volumes"],
        ports=flags["ports"],
        gpus=gpus,
    )
    if not (spec.get("image") or spec.get("model") or spec.get("driver") == Driver.PROCESS.value):
        raise usage("nothing to run: give --image IMAGE, or -f FILE with an image or a model")
    return spec
