"""Facts of nodes with one thing wrong, as a table; and the one table that people read."""

from __future__ import annotations

import ast
from typing import Any, Callable, Optional

import pytest

from runtime.agent.link.identity import NO_MACHINE_ID, NO_PRODUCT_UUID
from tests.unit.inventory.rules import FILES, MODULES

RULES, Probe = MODULES["node_rules"], MODULES["probe"].Probe
Finding, FLEET = MODULES["finding"].Finding, MODULES["finding"].FLEET
URL, OURS, MIB = "http://192.168.3.4:3333", "cp-1", 1 << 20
PATH = "/usr/local/sbin:/usr/bin"
Facts = dict[str, Any]


def place(**more: Any) -> Facts:
    return {"free_mib": 90_000, "files_left": 100_000, "read_only": False, "noexec": False, **more}


def node(number: int = 1) -> Facts:
    """Facts of a bare node that is well."""
    return {
        "python": "3.11.2",
        "lacks": [],
        "user": "root",
        "uid": 0,
        "machine": "x86_64",
        "systemd": True,
        "identity": {
            "machine": f"machine-{number}",
            "hostname": f"node-{number}",
            "configured": None,
            "stored": None,
            "instance_id": None,
        },
        "engine": {"state": "answers", "at": "/var/run/docker.sock", "version": "26.0", "root": "/var/lib/docker"},
        "places": {path: place() for path in ("/opt", "/etc", "/var/lib", "/var/lib/docker", "/opt/heterofleet")},
        "installed": {
            "opt": "none",
            "opt_target": None,
            "current": None,
            "whole": False,
            "cut": False,
            "unit": False,
            "settings": False,
        },
        "copies": [],
        "control_plane": {"state": "well", "id": OURS, "skew_s": 0.2},
    }


def seen(facts: Optional[Facts], host: str = "one", probe: Any = None, **told: Any) -> Any:
    probe = probe or Probe(answered=True, python="/usr/bin/python3", uid=0, path=PATH)
    return RULES.Seen(host, probe, facts, "Killed", URL, told)


def here(nodes: Optional[list[Facts]] = None, builds: Optional[dict[str, int]] = None) -> Any:
    return RULES.Here(
        {URL: OURS}, {URL: nodes or []}, {"amd64": 7 * MIB, "arm64": 7 * MIB} if builds is None else builds
    )


def put(value: Any, *path: str) -> Callable[[Facts], None]:
    def change(facts: Facts) -> None:
        for name in path[:-1]:
            facts = facts[name]
        facts[path[-1]] = value

    return change


SILENT = {"state": "silent", "at": "/var/run/docker.sock", "why": "timed out"}
NONE = {"state": "missing", "at": "/var/run/docker.sock", "why": "No such file"}
ELSEWHERE = {"state": "well", "id": "cp-2", "skew_s": 0.0}
REFUSED = {"state": "key refused", "id": OURS}
AWAY = {"state": "unreachable", "why": f"cannot reach {URL}: timed out"}

TABLE: dict[str, tuple[Callable[[Facts], None], str, str, str, bool]] = {
    # what is wrong: check, found, wanted, whether it refuses
    "not root": (put(1000, "uid"), "root", "the user root", "root", True),
    "small Python": (put(["sqlite3"], "lacks"), "Python", "3.11.2 without sqlite3", "own modules", True),
    "no systemd": (put(False, "systemd"), "systemd", "no /run/systemd/system", "systemd started", True),
    "another machine": (put("riscv64", "machine"), "architecture", "riscv64", "x86_64 or aarch64", True),
    "silent engine": (put(SILENT, "engine"), "Docker", "no answer on /var/run/docker.sock: timed out", "answers", True),
    "no engine": (put(NONE, "engine"), "Docker", "no Docker Engine", "answers", True),
    "full /opt": (put(place(free_mib=56), "places", "/opt/heterofleet"), "disk", "56 MiB free at /opt", "57 MiB", True),
    "no files": (put(place(files_left=3), "places", "/opt/heterofleet"), "disk", "3 files left", "1000", True),
    "noexec": (put(place(noexec=True), "places", "/opt/heterofleet"), "disk", "noexec", "programs start", True),
    "read-only": (put(place(read_only=True), "places", "/var/lib"), "disk", "/var/lib on a file", "written", True),
    "full engine": (put(place(free_mib=9), "places", "/var/lib/docker"), "disk", "9 MiB free", "2048 MiB", False),
    "unreachable": (put(AWAY, "control_plane"), "control plane", "timed out", f"an answer of {URL}", True),
    "wrong key": (put(REFUSED, "control_plane"), "key", f"{URL} refuses the key (401)", "the system key", True),
    "elsewhere": (put(ELSEWHERE, "control_plane"), "control plane", "another one at", "(cp-1)", True),
    "clock ahead": (put(31.0, "control_plane", "skew_s"), "clock", "31 s ahead of", "30 s", False),
    "clock behind": (put(-4000.5, "control_plane", "skew_s"), "clock", "4000 s behind", "30 s", False),
    "linked /opt": (put("link", "installed", "opt"), "installation", "a link to None", "a folder", True),
    "file in /opt": (put("file", "installed", "opt"), "installation", "a file at", "a folder", True),
    "cut run": (put(True, "installed", "cut"), "installation", "cut short", "nothing half done", False),
    "half": (put("releases/x", "installed", "current"), "installation", "missing or not executable", "whole", False),
    "lone unit": (put(True, "installed", "unit"), "installation", "a unit without a release", "whole", False),
    "copy": (put(["/usr/bin/heterofleet-agent"], "copies"), "copies", "another heterofleet", "the release", False),
}  # fmt: skip


def findings(*nodes: Any, around: Any = None) -> list[Any]:
    return RULES.node_findings(list(nodes), around or here())


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    skewed = node()
    skewed["control_plane"]["skew_s"] = -30.0
    assert findings(seen(skewed), seen(node(2), "two")) == []


@pytest.mark.parametrize("what", TABLE)
def test_one_thing_is_wrong(what: str) -> None:
    change, check, found, wanted, refuses = TABLE[what]
    facts = node()
    change(facts)
    (one,) = findings(seen(facts), seen(node(2), "two"))
    assert (one.host, one.check, one.refuses) == ("one", check, refuses)
    assert found in one.found and wanted in one.wanted and one.do


def test_a_user_without_rights_is_told_that_alone() -> None:
    facts = node()
    for what in ("no engine", "not root", "no systemd"):
        TABLE[what][0](facts)
    assert [one.check for one in findings(seen(facts))] == ["root"]


@pytest.mark.parametrize("what", ["silent engine", "no engine"])
def test_an_engine_is_wanted_of_a_new_node_for_containers(what: str) -> None:
    facts = node()
    TABLE[what][0](facts)
    (one,) = findings(seen(facts, agent_settings={"process_driver": True}))
    assert not one.refuses
    assert [one.refuses for one in findings(seen(facts))] == [True]
    facts["installed"]["current"] = "releases/x"
    assert [one.refuses for one in findings(seen(facts)) if one.check == "Docker"] == [False]


def test_what_could_not_be_looked_at() -> None:
    unreachable = Probe(unreachable=True, trouble="No route to host")
    no_root = Probe(trouble="Missing sudo password")
    in_vain = Probe(unreachable=True, trouble="Timeout (12s) waiting for privilege escalation prompt:")
    old = Probe(answered=True, uid=0, found_python="Python 3.8.18 (/usr/bin/python3)", path=PATH)
    bare = Probe(answered=True, uid=1000, path=PATH)
    said = findings(
        *(seen(None, host, probe) for host, probe in zip("abcd", (unreachable, no_root, old, bare))),
        seen(None, "e"),
        seen(None, "f", in_vain),
    )
    assert [(one.host, one.check, one.found) for one in said] == [
        ("a", "SSH", "No route to host"),
        ("b", "sudo", "Missing sudo password"),
        ("c", "Python", "Python 3.8.18 (/usr/bin/python3)"),
        ("d", "Python", "none"),
        ("d", "root", "the user user 1000"),
        ("e", "look", "Killed"),
        ("f", "sudo", in_vain.trouble),
    ]
    assert said[2].wanted == f"Python 3.9 to 3.14 on {PATH}"


@pytest.mark.parametrize(
    ("trouble", "advice"),
    [
        ("Host key verification failed.", "accept its host key"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @ Host key verification failed.", "ssh-keygen -R"),
        ("root@192.168.3.11: Permission denied (publickey,password).", "ssh-copy-id"),
        ("ssh: connect to host 192.168.3.11 port 22: No route to host", "look at address"),
    ],
)
def test_what_to_do_about_ssh_follows_its_words(trouble: str, advice: str) -> None:
    (one,) = findings(seen(None, "a", Probe(unreachable=True, trouble=trouble)))
    assert advice in one.do


def test_without_builds_in_the_run_none_are_missed() -> None:
    facts = node()
    TABLE["full /opt"][0](facts)
    facts["machine"] = "aarch64"
    nothing = RULES.Here({URL: OURS}, {}, None)
    assert findings(seen(facts), around=nothing) == []
    (one,) = findings(seen(node() | {"machine": "aarch64"}), around=here(builds={"amd64": MIB}))
    assert one.found == "arm64; builds are there for amd64" and one.do == "heterofleet artifacts build --arch arm64"


def holder(state: str = "online", hostname: str = "other", instance: str = "i-9", name: str = "node-1") -> Facts:
    return {"id": name, "state": state, "hostname": hostname, "instance_id": instance}


@pytest.mark.parametrize(
    ("row", "instance", "refuses"),
    [
        (holder(), None, True),
        (holder("unreachable"), "i-1", True),
        (holder("lost"), None, False),
        (holder("offline"), "i-1", False),
        (holder("offline", hostname="node-1"), None, None),  # this machine, with a new instance
        (holder(), "i-9", None),  # itself
        (holder(name="node-7"), None, None),
        (holder(instance=""), "", None),
    ],
)
def test_a_node_id_that_another_holds(row: Facts, instance: Optional[str], refuses: Optional[bool]) -> None:
    facts = node()
    facts["identity"]["instance_id"] = instance
    said = findings(seen(facts), around=here([row]))
    assert [(one.check, one.refuses) for one in said] == ([] if refuses is None else [("node_id", refuses)])


@pytest.mark.parametrize(
    ("told", "configured", "stored", "hostname", "wanted"),
    [
        ({"agent_node_id": "given"}, "configured", "stored", "Host.name", "given"),
        ({}, "configured", "stored", "Host.name", "configured"),
        ({}, None, "stored", "Host.name", "stored"),
        ({}, None, None, "Host.name", "host-name"),
    ],
)
def test_the_id_that_a_node_will_have(
    told: Facts, configured: Optional[str], stored: Optional[str], hostname: str, wanted: str
) -> None:
    facts = node()
    facts["identity"].update(configured=configured, stored=stored, hostname=hostname)
    assert RULES.node_id_of(seen(facts, **told)) == wanted


def test_two_names_of_one_machine_and_two_machines_of_one_name() -> None:
    twin, namesake = node(), node(3)
    twin["identity"]["hostname"] = "twin"
    namesake["identity"]["hostname"] = "node-2"
    said = findings(seen(node()), seen(twin, "again"), seen(node(2), "two"), seen(namesake, "three"))
    assert {(one.host, one.check, one.found) for one in said} == {
        ("one", "machine", "the same machine as again"),
        ("again", "machine", "the same machine as one"),
        ("two", "node_id", "node-2, which three would have, too"),
        ("three", "node_id", "node-2, which two would have, too"),
    }
    nameless = [node(), node(2)]
    for facts in nameless:
        facts["identity"]["machine"] = None
    assert findings(*(seen(facts, str(n)) for n, facts in enumerate(nameless))) == []


SHELL = ["Welcome!", "heterofleet-python /usr/bin/python3.9", "heterofleet-found ", "heterofleet-path /usr/bin"]
PROBED = "\r\n".join([*SHELL, "heterofleet-uid 0", ""])


def test_what_a_probe_says() -> None:
    read = MODULES["probe"].read_probe
    found = read({"stdout": PROBED})
    assert (found.answered, found.python, found.found_python) == (True, "/usr/bin/python3.9", None)
    assert (found.uid, found.path) == (0, "/usr/bin")
    away = {"unreachable": True, "msg": "Task failed: Failed to connect to the host via ssh: No\n route"}
    assert read(away) == Probe(unreachable=True, trouble="No route")
    assert read({"stdout": "", "stderr": "sudo: no password\n"}) == Probe(trouble="sudo: no password")
    assert read({}) == Probe()


TEXT = """\
Preflight: 8 of 9 hosts refused, 1 warning.

REFUSED
  host              check          found                              wanted                  what to do
  a                 key            http://192.168.3.4:3333 refuses    the system key of that  write the right key into
                                   the key (401)                      control plane           the file of
                                                                                              fleet_api_key_file that
                                                                                              holds for this host
  b, c, d, e, f, g  systemd        none                               one                     start it
  and 1 more

WARNINGS
  host              check          found                              wanted                  what to do
  (all)             token          old                                new                     change it
"""


def test_the_table() -> None:
    """Refusals before warnings, equal findings of many hosts in one row, no cell without its words."""
    key = MODULES["node_rules"]
    wrong = node()
    TABLE["wrong key"][0](wrong)
    said = key.node_findings([seen(wrong, "a")], here())
    said += [Finding(host, "systemd", "none", "one", "start it") for host in "hgfedcb"]
    said += [Finding(FLEET, "token", "old", "new", "change it", refuses=False)]
    assert MODULES["table"].render(said, 9) + "\n" == TEXT
    stopped = MODULES["table"].render([Finding(FLEET, "builds", "x", "y", "z")], 9)
    assert stopped.startswith("Preflight: nothing is done.\n")


def test_the_look_is_python_of_the_oldest_node() -> None:
    program = ast.parse((FILES / "look.py").read_text(), feature_version=(3, 9))
    assert {"look", "identity", "engine"} <= {one.name for one in program.body if isinstance(one, ast.FunctionDef)}


def test_the_look_knows_machines_as_the_agent_does() -> None:
    """It runs where there is no agent yet, so it has the lists of its own; the empty text is none to both."""
    program = ast.parse((FILES / "look.py").read_text())
    lists = {
        one.targets[0].id: set(ast.literal_eval(one.value)) - {""}
        for one in program.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id.startswith("NO_")
    }
    assert lists == {"NO_MACHINE": set(NO_MACHINE_ID), "NO_PRODUCT": set(NO_PRODUCT_UUID)}
