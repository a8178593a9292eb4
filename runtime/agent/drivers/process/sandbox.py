"""The transient unit of a process: what systemd is told of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from runtime.agent.drivers.process.records import Record

UNIT_PREFIX = "heterofleet-"
AGENT_UNIT = "heterofleet-agent.service"
STOP_S = 10

ENGINE_SOCKETS = (
    "/run/docker.sock",
    "/run/docker",
    "/run/containerd",
    "/run/podman",
    "/run/crio",
    "/run/k3s",
    "/run/buildkit",
    "/run/libvirt",
    "/run/snapd.socket",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/lxd",
    "/var/lib/incus",
    "/var/snap/lxd",
)
"""Where whoever may write is root: container engines and what else starts programs for others."""

MANAGERS = ("/run/dbus", "/run/systemd/private", "/run/systemd/io.system.ManagedOOM", "/run/initctl")
"""Where the machine's own manager listens."""

KEPT = ("/etc/heterofleet", "/run/heterofleet", "/var/lib/heterofleet")
"""The agent's."""

FORBIDDEN_TARGETS = ("/", "/proc", "/sys", "/dev", "/run", "/var/run", "/opt/heterofleet")

ROOTS_CAPABILITIES = (
    "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID CAP_NET_BIND_SERVICE"
)
"""What a container's root has, but for what could look behind the fence or into another process."""

_BECOME_SOMEBODY = "CAP_SETUID CAP_SETGID CAP_SETPCAP"


class TargetRefused(ValueError):
    """A volume cannot be put there; the message says why."""


def hidden_paths(own: Iterable[str]) -> tuple[str, ...]:
    """What no task sees. ``own``: this agent's state folder, key file, engine socket, wherever they are."""
    return tuple(dict.fromkeys((*KEPT, *own, *ENGINE_SOCKETS, *MANAGERS)))


def check_target(target: str, hidden: Sequence[str]) -> None:
    """A volume lies at or above nothing that is hidden, and below nothing of the machine's own.

    Raises TargetRefused.
    """
    path = Path(target)
    if any(character in target for character in ':"\\%$') or not target.isprintable():
        raise TargetRefused(f"volume path {target!a}: a process has no volume at a path with such characters")
    for place in (*FORBIDDEN_TARGETS, *hidden):
        here = Path(place)
        if path == here or path in here.parents or (place != "/" and here in path.parents):
            raise TargetRefused(f"volume path {target!r}: a process has no volume there, at or around {place}")


_SINCE = {"RestrictSUIDSGID": 242, "OOMPolicy": 243, "ProtectProc": 247}
"""Which release of systemd knows a setting; the others are older than what transient units need at all."""


def properties(record: Record, hidden: Sequence[str], files: dict[str, Path], log_unit: str, version: int) -> list[str]:
    """``NAME=VALUE`` for each setting that systemd ``version`` knows (systemd.exec(5), systemd.resource-control(5)).

    ``files``: ``go``, ``out``, ``started``, ``folder``, ``end_script``. ``log_unit``: the pump's unit.
    """
    found = [
        "Type=exec",
        f"StandardInput=file:{files['go']}",
        f"StandardOutput=file:{files['out']}",
        f"StandardError=file:{files['out']}",
        f"ExecStartPost=+/bin/sh -c {_quoted(': >' + str(files['started']))}",
        f"ExecStopPost={end_command(files, record.unit)}",
        "KillMode=control-group",
        f"TimeoutStopSec={STOP_S}",
        "TimeoutStartSec=60",
        "OOMPolicy=continue",
        # At the machine's end the agent goes first: it must not take the machine's signal for the program's end.
        f"Before={AGENT_UNIT}",
        f"After={log_unit}",
        "NoNewPrivileges=yes",
        "PrivateTmp=yes",
        "ProtectSystem=strict",
        "ProtectControlGroups=yes",
        "ProtectKernelTunables=yes",
        "ProtectKernelModules=yes",
        "ProtectProc=invisible",
        "RestrictSUIDSGID=yes",
        "RestrictNamespaces=yes",
        "InaccessiblePaths=" + " ".join(_quoted(f"-{path}") for path in hidden),
        *_identity(record),
        *_devices(record),
    ]
    for source, target, read_only in record.mounts:
        kind = "BindReadOnlyPaths" if read_only else "BindPaths"
        # Quotes around all of it make it one path. With "-" the command at the end runs as well: by then the volume's
        # place is let go, and systemd mounts anew for it. Who started without a volume is found out, and stopped.
        found.append(f"{kind}={_quoted(f'-{source}')}:{_quoted(target)}:rbind")
    if record.cpus is not None:
        found.append(f"CPUQuota={record.cpus * 100:.0f}%")
    if record.memory_mib is not None:
        found += [f"MemoryMax={record.memory_mib}M", "MemorySwapMax=0"]
    return [setting for setting in found if _SINCE.get(setting.partition("=")[0], 0) <= version]


def end_command(files: dict[str, Path], unit: str) -> str:
    """What is run at the end, outside the fence."""
    return f"+/bin/sh {_quoted(str(files['end_script']))} {_quoted(str(files['folder']))} {unit}"


def drop_in(files: dict[str, Path]) -> str:
    """For all units of tasks. systemd keeps what it was told by ``systemd-run`` in a file of its own and reads that
    anew when it is reloaded; commands with a ``+`` are in there under a name that it does not know itself (seen with
    release 252). Where that happened this line is still there."""
    return f"[Service]\nExecStopPost={end_command(files, '%N')}\n"


def program(record: Record) -> list[str]:
    """What the unit runs: the shell that reads the script, after it became who it shall be."""
    shell = ["/bin/sh"]
    return shell if record.user is not None else [*become(record), *shell]


def become(record: Record) -> list[str]:
    """A number without a name: systemd knows only names."""
    return [
        "setpriv",
        f"--reuid={record.uid}",
        f"--regid={record.gid}",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--no-new-privs",
    ]


def _identity(record: Record) -> list[str]:
    if record.user is None:
        return [f"CapabilityBoundingSet={_BECOME_SOMEBODY}"]
    capabilities = ROOTS_CAPABILITIES if record.uid == 0 else ""
    return [f"User={record.user}", f"Group={record.gid}", f"CapabilityBoundingSet={capabilities}"]


def _devices(record: Record) -> list[str]:
    return ["DevicePolicy=closed", *(f"DeviceAllow={path} rw" for path in record.devices or ())]


def _quoted(text: str) -> str:
    """One word in systemd's own quoting."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
