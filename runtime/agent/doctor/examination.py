"""The whole examination: which checks there are, in which order, and what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from runtime.agent.doctor.cards import CardFacts, judge_driver, look_at_cards
from runtime.agent.doctor.configuration import (
    Configuration,
    judge_key_file,
    judge_settings,
    judge_volumes,
    look_at_folders,
    look_at_key_file,
    read_configuration,
)
from runtime.agent.doctor.disk import judge_disk, look_at_disks
from runtime.agent.doctor.engine import EngineLook, judge_engine, judge_runtime, look_at_engine
from runtime.agent.doctor.findings import Finding, finding, unknown
from runtime.agent.doctor.identity import judge_identity, look_at_identity
from runtime.agent.doctor.infiniband import judge_infiniband, look_at_infiniband
from runtime.agent.doctor.looking import WHOLE_S, Check, Shared, examine
from runtime.agent.doctor.processes import judge_processes, look_at_processes
from runtime.agent.doctor.server import ServerFacts, judge_clock, judge_key, judge_server, look_at_server
from runtime.agent.doctor.tools import judge_tools, look_at_tools
from runtime.agent.doctor.unit import judge_unit, look_at_unit
from runtime.agent.doctor.vendors import VendorFacts, look_at_vendors
from runtime.agent.doctor.versions import judge_versions, look_at_versions
from runtime.agent.settings import masker_of
from runtime.agent.settings_found import state_dir_of
from runtime.protocol.masking import Masker


class Saying:
    """What a look is busy with, for the case that it never comes back."""

    def __init__(self) -> None:
        self.words = ""

    def __call__(self, words: str) -> None:
        self.words = words


def examine_node(config: Optional[Path], environ: Mapping[str, str], whole_s: float = WHOLE_S) -> list[Finding]:
    """All checks of this node; bounded by ``whole_s`` seconds, secrets masked."""
    found = read_configuration(config, environ)
    masker = masker_of(found.usable)
    findings = examine(checks_of(found, state_dir_of(config, environ)), whole_s)
    return [_masked(one, masker) for one in findings]


def checks_of(found: Configuration, state_dir: Path) -> Sequence[Check]:
    settings = found.usable
    at_server, at_engine, at_tools = Saying(), Saying(), Saying()
    server: Shared[Optional[ServerFacts]] = Shared(
        lambda: None if found.settings is None else look_at_server(found.settings, at_server)
    )
    engine: Shared[EngineLook] = Shared(lambda: look_at_engine(settings.docker_host, at_engine))
    cards: Shared[CardFacts] = Shared(lambda: look_at_cards(settings.hardware, state_dir))
    vendors: Shared[dict[str, VendorFacts]] = Shared(look_at_vendors)
    tools = Shared(lambda: look_at_tools(settings.hardware.tools, vendors.get(), at_tools))

    def disk() -> Finding:
        root = engine.get().root_dir
        return judge_disk(look_at_disks(str(state_dir), root, settings.disk_min_free_mib), root is not None)

    def volumes() -> Finding:
        if found.loaded is None:
            return finding("volumes", [unknown("which folders tasks may bind is not known", "see settings")])
        return judge_volumes(look_at_folders(found.loaded.settings), found.loaded.origins["volumes_allow"] != "default")

    def key() -> Finding:
        return judge_key(server.get(), judge_key_file(found, look_at_key_file(found)))

    def driver() -> Finding:
        return judge_driver(cards.get(), vendors.get())

    def commands() -> Finding:
        return judge_tools(tools.get(), vendors.get(), {gpu["vendor"] for gpu in cards.get().real})

    def processes() -> Finding:
        return judge_processes(look_at_processes(settings.process_unconfined, settings.process_allow_root))

    return (
        Check("settings", lambda: judge_settings(found)),
        Check("server", lambda: judge_server(server.get()), lambda: at_server.words),
        Check("key", key, lambda: at_server.words),
        Check("clock", lambda: judge_clock(server.get()), lambda: at_server.words),
        Check("engine", lambda: judge_engine(engine.get(), guessed=found.loaded is None), lambda: at_engine.words),
        Check("runtime", lambda: judge_runtime(engine.get(), cards.get()), lambda: at_engine.words or "the cards"),
        Check("driver", driver, lambda: "the detectors of cards"),
        Check("tools", commands, lambda: at_tools.words or "the cards"),
        Check("infiniband", lambda: judge_infiniband(look_at_infiniband(settings.fabrics))),
        Check("disk", disk, lambda: at_engine.words),
        Check("volumes", volumes),
        Check("unit", lambda: judge_unit(look_at_unit(state_dir))),
        Check("identity", lambda: judge_identity(look_at_identity(state_dir, settings.node_id))),
        Check("versions", lambda: judge_versions(look_at_versions(server.get())), lambda: at_server.words),
        *([Check("processes", processes)] if settings.process_driver else []),
    )


def _masked(one: Finding, masker: Masker) -> Finding:
    clean = masker.text
    points = (
        replace(point, found=clean(point.found), wanted=clean(point.wanted), advice=clean(point.advice))
        for point in one.points
    )
    return Finding(one.name, tuple(points))
