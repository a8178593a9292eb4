"""Engines and models of this machine for ``heterofleet-agent inventory``: one look, without settings."""

from __future__ import annotations

from typing import Any, Optional

from runtime.agent.drivers.errors import DriverError
from runtime.agent.engines.templates import routes_of, templates_in
from runtime.agent.engines.watch import engines_in
from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.models.roots import BY_DEFAULT
from runtime.agent.models.scanner import ModelScanner
from runtime.protocol.codec import encode
from runtime.protocol.heartbeat import Engine


def engines_here() -> Optional[list[Engine]]:
    """The engines whose image is on Docker's default engine; None when it cannot be asked."""
    from runtime.agent.drivers.docker import DockerDriver

    try:
        return engines_in(DockerDriver(None).images.list(), templates_in(routes_of({})))
    except DriverError:
        return None


def add_software(report: dict[str, Any], runner: Optional[ToolRunner] = None) -> None:
    """Fill in ``engines`` and ``models`` (null: could not be looked at), and say in ``cannot`` what follows from it."""
    engines = engines_here()
    scanner = ModelScanner(runner or ToolRunner(), [BY_DEFAULT[0]], None)
    scanner.scan()
    found = scanner.snapshot()
    report["engines"], report["models"] = encode(engines), encode(found.models)
    if engines is None:
        report["cannot"].append("Docker cannot be asked: cannot run containers, nor say which engines are here")
    elif not engines:
        report["cannot"].append("no inference engine's image: cannot run tasks that name a model and no image")
    if found.scan is not None and found.scan.error is not None:
        report["cannot"].append(f"cannot look for models everywhere: {found.scan.error}")


def software_lines(report: dict[str, Any]) -> list[str]:
    """Engines and models for people, a line each."""
    engines, models = report["engines"] or (), report["models"] or ()
    lines = [f"engine {one['name']}: {one['image']}" for one in engines]
    for one in models:
        size = "" if one["size_mib"] is None else f", {one['size_mib']} MiB"
        state = one["state"] if one["reason"] is None else f"{one['state']}: {one['reason']}"
        lines.append(f"model {one['name']!a}: {one['format']}{size}, {state}")
    return lines
