"""``heterofleet-agent``: run the agent, or ask about it.

Exit codes: 0, 1 fault, 2 usage, 73 cannot write state, 78 configuration (a server that is away ends nothing);
``status``: 0 registered, 1 not, 3 no agent here; ``doctor``: 0 good, 1 warnings, 2 failures.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from runtime.agent.command_line import parser
from runtime.protocol.build import this_build

if TYPE_CHECKING:
    from runtime.agent.settings import AgentSettings
    from runtime.protocol.masking import Masker
    from runtime.protocol.settings import Loaded

EXIT_OK = 0
EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_STATE = 73
EXIT_CONFIG = 78

PARSE_LIMIT = 16 * 1024 * 1024
"""So many bytes of a pasted text are read."""

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""How a full or broken disk refuses the output."""


def main(arguments: Optional[list[str]] = None) -> int:
    """The command line; returns the exit code."""
    options = parser().parse_args(arguments)
    command = {
        "run": _run,
        "status": _status,
        "config": _config,
        "inventory": _inventory,
        "doctor": _doctor,
        "parse": _parse,
        "version": _version,
    }[options.command]
    try:
        code = command(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter must not complain of it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAULT
    except OSError as error:
        if error.errno not in CANNOT_WRITE or options.command == "run":
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"the output cannot be written ({error.strerror}); it is not complete", file=sys.stderr)
        return EXIT_FAULT


def _load(options: argparse.Namespace) -> Optional[Loaded[AgentSettings]]:
    """The settings; None after every fault was printed."""
    from runtime.agent.settings import DEFAULT_PATH, load_settings
    from runtime.protocol.settings import SettingsError

    overrides = {
        "server_url": getattr(options, "server", None),
        "node_id": getattr(options, "node_id", None),
        "mgmt_addr": getattr(options, "mgmt_addr", None),
    }
    try:
        return load_settings(options.config, os.environ, overrides)
    except SettingsError as error:
        if options.config is None and not DEFAULT_PATH.exists():
            print(f"there is no file {DEFAULT_PATH}, and none was named with --config", file=sys.stderr)
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return None


def _run(options: argparse.Namespace) -> int:
    loaded = _load(options)
    if loaded is None:
        return EXIT_CONFIG
    masker = _log_masked(loaded.settings, options.verbose)
    for warning in loaded.warnings:
        logging.getLogger(__name__).warning("%s", masker.text(warning))

    from runtime.agent.link.identity import IdentityError
    from runtime.agent.state import StateError
    from runtime.agent.wiring import build

    log = logging.getLogger(__name__)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log.info("heterofleet-agent %s starts", this_build())
    try:
        settings = loaded.settings
        if options.config is not None:  # it may hold the key, and lie where tasks may look
            settings = dataclasses.replace(
                settings, volumes_deny=[*settings.volumes_deny, str(options.config.resolve())]
            )
        agent, lock = build(settings, masker, adopt_node_id=options.adopt_node_id)
    except StateError as error:
        print(error, file=sys.stderr)
        return EXIT_STATE
    except IdentityError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    code = EXIT_OK
    try:
        agent.start()
        agent.run_until(stop)
    except Exception:
        log.exception("a fault of the agent's own; it ends, and containers go on")  # masked, unlike a bare traceback
        code = EXIT_FAULT
    agent.stop()
    lock.release()
    _leave(code)
    return code


def _leave(code: int) -> None:
    """End the process although a thread may still wait in a call: the stop has its time limit."""
    strays = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    if strays:
        logging.getLogger(__name__).warning("still busy: %s", ", ".join(thread.name for thread in strays))
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def _log_masked(settings: AgentSettings, verbose: int) -> Masker:
    from runtime.agent.settings import masker_of
    from runtime.protocol.masking import set_up_logging

    masker = masker_of(settings)
    set_up_logging(masker, verbose)
    return masker


def _status(options: argparse.Namespace) -> int:
    from runtime.agent import status

    state_dir = _state_dir(options.config)
    path = state_dir / status.FILE
    try:
        path.open("rb").close()
    except PermissionError:
        print(f"{path} cannot be read by this user: run this as root, as the agent runs", file=sys.stderr)
        return EXIT_FAULT
    except OSError:
        pass  # judged below

    def look() -> status.Verdict:
        found = status.read_status(path)
        return status.judge(found, found is not None and status.is_running(found, _boot_id()))

    verdict = status.wait_for_registration(look, options.wait)
    if options.json:
        print(json.dumps(status.no_agent(path) if verdict.status is None else verdict.status))
    else:
        print(status.as_text(verdict))
    return verdict.exit_code


def _state_dir(config: Optional[Path]) -> Path:
    """Where the agent keeps its state, also when its settings are broken: ``status`` must answer then."""
    from runtime.agent.settings_found import state_dir_of

    return state_dir_of(config, os.environ)


def _boot_id() -> Optional[str]:
    from runtime.agent.link.identity import this_machine

    return this_machine().boot_id


def _config(options: argparse.Namespace) -> int:
    loaded = _load(options)
    if loaded is None:
        return EXIT_CONFIG
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if options.what == "check":
        print(_checked(options.config, loaded))
        return EXIT_OK
    from runtime.protocol.settings import effective

    for path, value, origin in effective(loaded):
        print(f"{path}: {json.dumps(value)}  # {origin}")
    return EXIT_OK


def _checked(config: Optional[Path], loaded: Loaded[AgentSettings]) -> str:
    from runtime.agent.settings import DEFAULT_PATH

    file = config or DEFAULT_PATH
    # A key has its file for an origin; it is one setting with the file's name.
    number = sum(origin not in ("default", loaded.settings.api_key_file) for origin in loaded.origins.values())
    where = str(file) if file.exists() else f"without {file}"
    return f"{where}: {number} setting{'' if number == 1 else 's'}, no fault"


def _inventory(options: argparse.Namespace) -> int:
    from runtime.agent.engines.inventory import add_software, software_lines
    from runtime.agent.hardware.infiniband.adapters import by_adapter
    from runtime.agent.hardware.infiniband.sysfs import ROOT
    from runtime.agent.hardware.report import UNKNOWN_BEFORE, add_infiniband, as_table, is_virtual, take_inventory
    from runtime.agent.settings_found import hardware_of, remembered_of

    if options.ib_root is not None and not options.ib_root.is_dir():
        print(f"--ib-root: there is no folder {options.ib_root}", file=sys.stderr)
        return EXIT_USAGE
    found = hardware_of(options.config, os.environ)
    tools: dict[str, str] = {**found.hardware.tools, **dict(options.tool)}
    if options.nvidia_smi:
        tools["nvidia-smi"] = options.nvidia_smi
    remembered = remembered_of(options.config, os.environ)
    report = take_inventory(
        tools,
        cards=not options.no_gpu,
        nvml=not options.no_nvml,
        mode=found.hardware.detect,
        virtual=found.hardware.virtual_cards,
        remembered=remembered,
    )
    if found.unread is not None:
        report["cannot"].append(found.unread)
    if remembered is None and is_virtual(report):
        report["cannot"].append(UNKNOWN_BEFORE)
    add_infiniband(report, by_adapter(found.fabrics), options.ib_root or ROOT)
    add_software(report)
    print(json.dumps(report) if options.json else "\n".join([as_table(report), *software_lines(report)]))
    if report["error"]:
        print(report["error"], file=sys.stderr)
    return EXIT_OK


def _doctor(options: argparse.Namespace) -> int:
    from runtime.agent.doctor.examination import examine_node
    from runtime.agent.doctor.findings import as_json, as_text, exit_code

    logging.disable(logging.CRITICAL)  # what matters is in the findings, masked
    findings = examine_node(options.config, os.environ)
    print(json.dumps(as_json(findings)) if options.json else as_text(findings))
    code = exit_code(findings)
    _leave(code)
    return code


def _parse(options: argparse.Namespace) -> int:
    from runtime.agent.parse.registry import UnknownTool, parse_text

    text = sys.stdin.buffer.read(PARSE_LIMIT).decode("utf-8", "replace")
    try:
        found = parse_text(options.tool, options.arguments, text)
    except UnknownTool as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    print(json.dumps(found))
    if found.get("error"):
        print(found["error"], file=sys.stderr)
    return EXIT_OK


def _version(options: argparse.Namespace) -> int:
    build = this_build()
    if options.json:
        facts: dict[str, Any] = {
            "version": build.version,
            "commit": build.commit,
            "built_at": build.built_at,
            "dirty": build.dirty,
        }
        print(json.dumps(facts))
    else:
        print(f"heterofleet-agent {build}" + (f" ({build.built_at})" if build.built_at else ""))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
