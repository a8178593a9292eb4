"""What can be wrong with an inventory and its settings, told before any host is spoken to. Pure but for reading files.

``told`` is what Ansible knows: ``hosts`` (each with the variables that are ours), ``given`` (the role's own
variables), ``need`` (which of key, token and builds the run needs) and ``known`` (names that anything here reads).
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Optional

import secret_files
from build_files import build_findings
from finding import FLEET, Finding

from runtime.protocol.address import AddressError, parse_server_url
from runtime.protocol.names import is_node_id
from runtime.protocol.problems import nearest_name
from runtime.protocol.settings import SettingsError, load

OF_THE_ROLE = {
    "server_url": "fleet_server_url",
    "api_key": "fleet_api_key_file",
    "api_key_file": "fleet_api_key_file",
    "ca_file": "fleet_ca_file",
    "allow_plain_http": "fleet_allow_plain_http",
    "node_id": "agent_node_id",
    "mgmt_addr": "agent_mgmt_addr",
    "labels": "agent_labels",
}
"""Settings that have a variable of their own: in agent_settings they would stand twice."""

SECRET_NAMES = {
    "fleet_api_key": "fleet_api_key_file",
    "fleet_key": "fleet_api_key_file",
    "fleet_system_key": "fleet_api_key_file",
    "agent_api_key": "fleet_api_key_file",
    "agent_key": "fleet_api_key_file",
    "fleet_token": "fleet_token_file",
}
"""Somebody wrote the secret itself into a variable."""

REMOVED: dict[str, str] = {}
"""Names of earlier releases -> what took their place. Nothing was renamed yet."""

SWITCHES = ("allow_plain_http", "allow_dirty", "cordon")
OURS = re.compile(r"(?:fleet|agent)_")
MEANT = 0.8
"""So much alike is a name that somebody wrote with a wrong letter (difflib's ratio)."""


@dataclass(frozen=True)
class Host:
    """A host of the group nodes with the variables that hold for it."""

    name: str
    told: Mapping[str, Any]
    given: Mapping[str, Any]

    def value(self, name: str) -> Any:
        """A fleet-wide setting as it holds here: the agent's own variable, the fleet's, then the role's."""
        for variable in (f"agent_{name}", f"fleet_{name}"):
            if self.told.get(variable) is not None:
                return self.told[variable]
        return self.given.get(name)


def hosts_of(told: Mapping[str, Any]) -> list[Host]:
    return [Host(one["host"], one["vars"], told["given"]) for one in told["hosts"]]


def inventory_findings(told: Mapping[str, Any]) -> list[Finding]:
    """Everything that is wrong, of the fleet first."""
    hosts = hosts_of(told)
    if not hosts:
        return [
            Finding(
                FLEET, "inventory", "no host in the group nodes", "at least one",
                "put the hosts that get agents into the group nodes; inventory/example.yml shows how",
            )
        ]  # fmt: skip
    found = list(_of_the_fleet(told["given"], told["need"]))
    found += _spread(hosts, _address_of, _address)
    if "key" in told["need"]:
        found += _spread(hosts, lambda host: host.value("api_key_file"), secret_files.key_findings)
    found += _spread(hosts, lambda host: host.value("ca_file"), secret_files.ca_findings)
    found += _unknown_names(hosts, told["known"])
    for host in hosts:
        found += _of_a_host(host)
    found += _twice(hosts)
    return sorted(set(found), key=lambda one: (one.host, not one.refuses, one.check))


def _spread(
    hosts: list[Host], value_of: Callable[[Host], Any], rule: Callable[[Any], list[Finding]]
) -> Iterator[Finding]:
    """What ``rule`` says of each host's value; of a value that all hosts have it concerns the fleet."""
    holders: dict[str, list[Host]] = defaultdict(list)
    for host in hosts:
        holders[repr(value_of(host))].append(host)
    for some in holders.values():
        for one in rule(value_of(some[0])):
            for name in [FLEET] if len(holders) == 1 else [host.name for host in some]:
                yield replace(one, host=name)


def _of_the_fleet(given: Mapping[str, Any], need: Collection[str]) -> Iterator[Finding]:
    # One that is named and cannot be read is no file to go without: the roles read it wherever it is named.
    if "token" in need or given["token_file"]:
        yield from secret_files.token_findings(given["token_file"])
    if "builds" in need:
        yield from build_findings(given["builds_dir"], given["allow_dirty"])
    yield from _wave(given["wave"])
    if given["refused"] not in ("skip", "stop"):
        yield Finding(
            FLEET, "fleet_refused", _shown(given["refused"]), "skip or stop",
            "skip: the other hosts go on; stop: nothing is touched",
        )  # fmt: skip
    for name in SWITCHES:
        if not isinstance(given[name], bool):
            yield Finding(
                FLEET, f"fleet_{name}", _shown(given[name]), "true or false",
                f"write it without quotes; with -e as JSON: -e '{{\"fleet_{name}\": true}}'",
            )  # fmt: skip


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    return f"the text {value[:60]!r}" if isinstance(value, str) else repr(value)[:60]


def _address_of(host: Host) -> tuple[Any, bool]:
    return host.value("server_url"), host.value("allow_plain_http") is True


def _address(value: tuple[Any, bool]) -> list[Finding]:
    url, allow_plain_http = value
    do = "set fleet_server_url to the address at which the nodes reach the control plane"
    if not isinstance(url, str) or not url:
        return [Finding(FLEET, "server URL", _shown(url), "a URL such as http://192.0.2.10:3333", do)]
    try:
        parse_server_url(url, allow_plain_http=allow_plain_http)
    except AddressError as error:
        wanted = error.wanted.replace("allow_plain_http: true", "fleet_allow_plain_http: true")
        return [Finding(FLEET, "server URL", error.found, wanted, do)]
    return []


def _wave(wave: Any) -> Iterator[Finding]:
    entries = wave if isinstance(wave, list) else [wave]
    wrong = [one for one in entries if not _is_wave(one)]
    if wrong or not entries:
        yield Finding(
            FLEET, "fleet_wave", _shown(wrong[0]) if wrong else "an empty list",
            "numbers of hosts (from 1) and shares (1% to 100%)", 'such as fleet_wave: [1, "10%", "100%"]',
        )  # fmt: skip


def _is_wave(entry: Any) -> bool:
    if isinstance(entry, bool):
        return False
    if isinstance(entry, int):
        return entry >= 1
    if not isinstance(entry, str):
        return False
    share = re.fullmatch(r"([0-9]{1,3})%", entry)
    return 1 <= int(share.group(1)) <= 100 if share else entry.isdigit() and int(entry) >= 1


def _unknown_names(hosts: list[Host], known: Collection[str]) -> Iterator[Finding]:
    """Variables of ours that nothing reads: a wrong letter would else be a setting that silently is not one."""
    where: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        for name in host.told:
            if OURS.match(name) and name not in known:
                where[name].append(host.name)
    for name, names in where.items():
        for place in [FLEET] if len(names) == len(hosts) else names:
            yield _unknown(place, name, known)


def _unknown(host: str, name: str, known: Collection[str]) -> Finding:
    if name in SECRET_NAMES:
        return Finding(
            host, "variables", f"{name}, a secret in a variable", f"{SECRET_NAMES[name]}, the path of a file",
            "write the secret into a file of mode 0600 on the controller, and take it out of the inventory",
        )  # fmt: skip
    if name in REMOVED:
        return Finding(
            host, "variables", f"{name}, a name of an earlier release", REMOVED[name], f"rename it to {REMOVED[name]}"
        )
    public = sorted(one for one in known if "__" not in one)
    nearest = nearest_name(name, public)
    # Another program may have variables that begin with agent_, too: those refuse only where one of ours was meant.
    refuses = name.startswith("fleet_") or bool(difflib.get_close_matches(name, public, n=1, cutoff=MEANT))
    return Finding(
        host,
        "variables",
        f"{name}, which nothing reads",
        f"a known name; the nearest is {nearest}" if nearest else "a known name",
        f"rename it to {nearest}" if nearest and refuses else "remove it, or give it another beginning",
        refuses,
    )


def _of_a_host(host: Host) -> Iterator[Finding]:
    node_id, labels = host.told.get("agent_node_id"), host.told.get("agent_labels")
    if node_id is not None and not (isinstance(node_id, str) and is_node_id(node_id)):
        yield Finding(
            host.name, "agent_node_id", _shown(node_id), "1 to 63 of a-z, 0-9 and -, with no - at either end",
            "change it, or remove it: without it the node takes its host name",
        )  # fmt: skip
        node_id = None
    yield from _labels(host.name, labels)
    yield from _settings(host)


def _labels(host: str, labels: Any) -> Iterator[Finding]:
    if labels is None:
        return
    if not isinstance(labels, Mapping):
        yield Finding(host, "agent_labels", _shown(labels), "a map of texts", "such as agent_labels: {rack: a12}")
        return
    for name, value in labels.items():
        if not isinstance(name, str) or not name or "=" in name or not name.isprintable():
            yield Finding(
                host, "agent_labels", f"the name {name!r}", "printable text in one line, without =", "change the name"
            )
        elif not isinstance(value, str) or not value.isprintable():
            yield Finding(
                host, "agent_labels", f"{name}: {_shown(value)}", "printable text in one line",
                f'write it as text: {name}: "{value}"' if not isinstance(value, str) else "change the value",
            )  # fmt: skip


def _settings(host: Host) -> Iterator[Finding]:
    """The further lines of agent.yaml. The agent's own check comes later, on the node: it may be of another release."""
    more, addr = host.told.get("agent_settings"), host.told.get("agent_mgmt_addr")
    if addr is not None and (not isinstance(addr, str) or re.fullmatch(r"[^\s/@]{1,255}", addr) is None):
        yield Finding(host.name, "agent_mgmt_addr", _shown(addr), "one host name or address", "change or remove it")
    if more is None:
        return
    if not isinstance(more, Mapping):
        yield Finding(host.name, "agent_settings", type(more).__name__, "a map", "such as agent_settings: {workers: 4}")
        return
    for name in more:
        if name in OF_THE_ROLE:
            yield Finding(
                host.name, "agent_settings", str(name), f"that setting in {OF_THE_ROLE[name]}",
                f"move it to {OF_THE_ROLE[name]}: in agent.yaml it would stand twice",
            )  # fmt: skip
    yield from _against_the_agent(host.name, {name: more[name] for name in more if name not in OF_THE_ROLE})


def _against_the_agent(host: str, more: Mapping[str, Any]) -> Iterator[Finding]:
    settings = _agent_settings()
    try:
        if settings is not None:
            load(settings, document=more, document_name="agent_settings", environ={})
    except SettingsError as error:
        for fault in error.faults:
            yield Finding(
                host, "agent_settings", f"{fault.path}: {fault.found}", fault.wanted, "correct agent_settings"
            )


def _agent_settings() -> Optional[type]:
    """The agent's own table of settings, where its package is beside this program."""
    try:
        from runtime.agent.settings import AgentSettings
    except ImportError:
        return None
    return AgentSettings


def _twice(hosts: list[Host]) -> Iterator[Finding]:
    """Two hosts of one node id, or at one address."""
    ids: dict[Any, list[str]] = defaultdict(list)
    places: dict[Any, list[str]] = defaultdict(list)
    for host in hosts:
        ids[host.told.get("agent_node_id")].append(host.name)
        address = host.told.get("ansible_host")
        places[address and (address, host.told.get("ansible_port") or 22)].append(host.name)
    for what, table, do in (
        ("agent_node_id", ids, "give each host an id of its own"),
        ("ansible_host", places, "remove one of the names: two runs on one machine would meet each other"),
    ):
        for value, names in table.items():
            if value is None or len(names) == 1:
                continue
            shown = value[0] if isinstance(value, tuple) else value
            for name in names:
                others = ", ".join(other for other in names if other != name)
                yield Finding(name, what, f"{shown}, which {others} has, too", "one host of that kind", do)
