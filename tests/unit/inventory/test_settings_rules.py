"""Inventories and settings with one thing wrong, as a table: what is found, what is wanted, of which host."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest
import yaml

from runtime.protocol.manifest import BuildFile, Manifest, checksums
from tests.unit.inventory.rules import FILES, MODULES, ROOT

KEY = "k3y/0f-a+fleet=that%is&fine"
FLEET = MODULES["finding"].FLEET
KNOWN = MODULES["known_names"].known_names(ROOT)
Told = dict[str, Any]
Change = Callable[[Told, Path], None]


def private(path: Path, text: str | bytes, mode: int = 0o600) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def builds(folder: Path, *, dirty: bool = False) -> str:
    folder.mkdir(exist_ok=True)
    made = {}
    for arch in ("amd64", "arm64"):
        (folder / f"agent-{arch}").write_bytes(arch.encode() * 100)
        sums = checksums([arch.encode() * 100])
        made[arch] = BuildFile(f"agent-{arch}", sums.size, sums.md5, sums.sha256)
    manifest = Manifest("1.2.3", "0123456789ab", "2026-01-02T03:04:05Z", dirty, 1, made)
    (folder / "manifest.json").write_text(manifest.text())
    return str(folder)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Two hosts and nothing wrong."""
    return {
        "need": ["key", "token", "builds"],
        "known": KNOWN,
        "given": {
            "server_url": "http://192.168.3.4:3333",
            "api_key_file": private(tmp_path / "key", KEY + "\n"),
            "token_file": private(tmp_path / "token", "hft_0123456789\n"),
            "ca_file": "",
            "allow_plain_http": False,
            "builds_dir": builds(tmp_path / "builds"),
            "allow_dirty": False,
            "wave": [1, "10%", "100%"],
            "cordon": True,
            "refused": "skip",
        },
        "hosts": [
            {"host": "one", "vars": {"ansible_host": "192.168.3.11", "agent_node_id": "gpu-1"}},
            {"host": "two", "vars": {"ansible_host": "192.168.3.12", "agent_labels": {"rack": "a12"}}},
        ],
    }


def given(name: str, value: Any) -> Change:
    return lambda told, _: told["given"].update({name: value})


def of_one(name: str, value: Any) -> Change:
    return lambda told, _: told["hosts"][0]["vars"].update({name: value})


def of_both(name: str, value: Any) -> Change:
    return lambda told, _: [one["vars"].update({name: value}) for one in told["hosts"]] and None


def key_file(content: str | bytes, mode: int = 0o600) -> Change:
    return lambda told, path: told["given"].update(api_key_file=private(path / "odd", content, mode))


def flipped(told: Told, path: Path) -> None:
    build = path / "builds" / "agent-arm64"
    build.write_bytes(b"A" + build.read_bytes()[1:])


def dirty(told: Told, path: Path) -> None:
    builds(path / "builds", dirty=True)


TABLE: dict[str, tuple[Change, str, str, str, str]] = {
    # what is wrong: host, check, found, wanted
    "no hosts": (lambda told, _: told.update(hosts=[]), FLEET, "inventory", "no host in the group nodes", "one"),
    "no address": (given("server_url", ""), FLEET, "server URL", "nothing", "http://192.0.2.10:3333"),
    "no scheme": (given("server_url", "192.168.3.4:3333"), FLEET, "server URL", "192.168.3.4", "http://192.168.3.4"),
    "credentials": (given("server_url", "http://u:pw@192.168.3.4"), FLEET, "server URL", "a user name", "without them"),
    "public": (given("server_url", "http://example.org"), FLEET, "server URL", "plain http://", "fleet_allow_plain"),
    "IPv6": (given("server_url", "http://fd00::1:3333"), FLEET, "server URL", "fd00", "brackets"),
    "one host's address": (of_one("fleet_server_url", "ftp://x"), "one", "server URL", "'ftp'", "http or https"),
    "no key file": (given("api_key_file", ""), FLEET, "key file", "nothing", "the path of"),
    "relative": (given("api_key_file", "keys/key"), FLEET, "key file", "the relative path keys/key", "absolute"),
    "key file away": (given("api_key_file", "/nowhere/key"), FLEET, "key file", "/nowhere/key: No such file", "read"),
    "key open": (key_file(KEY, 0o640), FLEET, "key file", "open to others (mode 0640)", "0600"),
    "key of two lines": (key_file(KEY + "\n" + KEY), FLEET, "key file", "more than one line", "one line"),
    "key with blanks": (key_file("two words that are long"), FLEET, "key file", "blanks", "printable ASCII"),
    "Windows key": (key_file(KEY + "\r\n"), FLEET, "key file", "Windows line ends", "Unix"),
    "marked key": (key_file(b"\xef\xbb\xbf" + KEY.encode()), FLEET, "key file", "byte order mark", "ASCII"),
    "empty key": (key_file("\n"), FLEET, "key file", "empty", "one line"),
    "huge key": (key_file("x" * 5000), FLEET, "key file", "more than 4096 bytes", "one line"),
    "short key": (key_file("Short-12"), FLEET, "key file", "a key of 8 characters", "at least 16"),
    "known key": (key_file("changemechangeme1"), FLEET, "key file", "a known default", "a random key"),
    "poor key": (key_file("abababababababab"), FLEET, "key file", "distinct", "a random key"),
    "one host's key": (of_one("fleet_api_key_file", "/nowhere"), "one", "key file", "/nowhere: No such file", "read"),
    "no token": (given("token_file", None), FLEET, "token file", "nothing", "the path of"),
    "no CA": (given("ca_file", "/nowhere.pem"), FLEET, "CA file", "/nowhere.pem: No such file", "PEM"),
    "odd CA": (given("ca_file", str(FILES / "table.py")), FLEET, "CA file", "no certificate", "PEM"),
    "no builds": (given("builds_dir", "/nowhere"), FLEET, "builds", "/nowhere/manifest.json: No such file", "manifest"),
    "flipped byte": (flipped, FLEET, "builds", "agent-arm64 with sha256", "as the manifest says"),
    "dirty": (dirty, FLEET, "builds", "1.2.3-0123456789ab, a build that no commit describes", "clean checkout"),
    "wave 0": (given("wave", [1, 0]), FLEET, "fleet_wave", "0", "from 1"),
    "wave 110%": (given("wave", "110%"), FLEET, "fleet_wave", "110%", "1% to 100%"),
    "wave true": (given("wave", [True]), FLEET, "fleet_wave", "True", "numbers"),
    "no waves": (given("wave", []), FLEET, "fleet_wave", "an empty list", "numbers"),
    "half waves": (given("wave", 0.5), FLEET, "fleet_wave", "0.5", "numbers"),
    "refused": (given("refused", "halt"), FLEET, "fleet_refused", "halt", "skip or stop"),
    "a text": (given("cordon", "false"), FLEET, "fleet_cordon", "the text 'false'", "true or false"),
    "letter": (of_both("fleet_sever_url", "x"), FLEET, "variables", "fleet_sever_url", "fleet_server_url"),
    "one host's letter": (of_one("agent_label", {}), "one", "variables", "agent_label,", "agent_labels"),
    "key itself": (of_both("fleet_api_key", KEY), FLEET, "variables", "fleet_api_key, a secret", "fleet_api_key_file"),
    "node id": (of_one("agent_node_id", "Gpu_1"), "one", "agent_node_id", "'Gpu_1'", "1 to 63 of a-z"),
    "id a number": (of_one("agent_node_id", 17), "one", "agent_node_id", "17", "1 to 63"),
    "id twice": (of_both("agent_node_id", "gpu-1"), "two", "agent_node_id", "gpu-1, which one has, too", "one host"),
    "address twice": (of_both("ansible_host", "192.168.3.9"), "one", "ansible_host", "192.168.3.9, which two", "one"),
    "labels a list": (of_one("agent_labels", ["a=b"]), "one", "agent_labels", "['a=b']", "a map of texts"),
    "label a number": (of_one("agent_labels", {"rack": 12}), "one", "agent_labels", "rack: 12", "printable text"),
    "label with =": (of_one("agent_labels", {"a=b": "c"}), "one", "agent_labels", "the name 'a=b'", "without ="),
    "label of two lines": (of_one("agent_labels", {"a": "b\nc"}), "one", "agent_labels", "a: the text", "one line"),
    "address of a node": (of_one("agent_mgmt_addr", "a b"), "one", "agent_mgmt_addr", "'a b'", "one host name"),
    "setting of ours": (of_one("agent_settings", {"server_url": "x"}), "one", "agent_settings", "server_url", "fleet_"),
    "unknown setting": (of_one("agent_settings", {"worker": 4}), "one", "agent_settings", "worker", "is workers"),
    "setting of a kind": (of_one("agent_settings", {"workers": "x"}), "one", "agent_settings", "workers", "number"),
    "settings a list": (of_one("agent_settings", [1]), "one", "agent_settings", "list", "a map"),
}  # fmt: skip


def findings(told: Told) -> list[Any]:
    return MODULES["inventory_rules"].inventory_findings(told)


def test_nothing_is_found_where_nothing_is_wrong(told: Told) -> None:
    assert findings(told) == []


@pytest.mark.parametrize("what", TABLE)
def test_one_thing_is_wrong(what: str, told: Told, tmp_path: Path) -> None:
    change, host, check, found, wanted = TABLE[what]
    change(told, tmp_path)
    said = findings(told)
    hits = [one for one in said if (one.host, one.check) == (host, check)]
    assert len(hits) == 1, said
    assert found in hits[0].found and wanted in hits[0].wanted and hits[0].do
    assert hits[0].refuses
    # Only twice the same thing concerns another host, too; and no secret is shown.
    assert len(said) == 1 or what.endswith("twice"), said
    assert all(secret not in str(said) for secret in (KEY, "pw@", "hft_0123456789"))


def test_all_that_is_wrong_is_said_at_once(told: Told, tmp_path: Path) -> None:
    for what in ("no scheme", "short key", "wave 0", "refused", "letter", "label a number", "node id"):
        TABLE[what][0](told, tmp_path)
    assert {(one.host, one.check) for one in findings(told)} == {
        (FLEET, "server URL"),
        (FLEET, "key file"),
        (FLEET, "fleet_wave"),
        (FLEET, "fleet_refused"),
        (FLEET, "variables"),
        ("one", "agent_labels"),
        ("one", "agent_node_id"),
    }


def test_what_the_run_does_not_need_is_not_asked_for(told: Told) -> None:
    told["need"] = []
    told["given"].update(api_key_file="", token_file="", builds_dir="")
    assert findings(told) == []


def test_another_programs_variable_is_a_warning(told: Told) -> None:
    told["hosts"][0]["vars"]["agent_zabbix_port"] = 10050
    (one,) = findings(told)
    assert (one.host, one.check, one.refuses) == ("one", "variables", False)


def test_plain_http_may_be_allowed_and_dirty_builds_too(told: Told, tmp_path: Path) -> None:
    told["given"].update(server_url="http://example.org:3333", allow_plain_http=True, allow_dirty=True)
    dirty(told, tmp_path)
    assert findings(told) == []


def test_equal_settings_of_all_hosts_are_said_once(told: Told) -> None:
    of_both("fleet_api_key_file", "/nowhere")(told, Path())
    (one,) = findings(told)
    assert one.host == FLEET


def test_every_documented_variable_is_known() -> None:
    text = (ROOT / "inventory/group_vars/all.yml").read_text()
    documented = {line[2:].partition(":")[0] for line in text.splitlines() if line.startswith("# fleet_")}
    assert len(documented) >= 11 and documented <= KNOWN


def test_the_example_is_right(told: Told) -> None:
    """As it lies there, but for the address of the control plane, the files and the builds of this test."""
    example = yaml.safe_load((ROOT / "inventory/example.yml").read_text())
    told["hosts"] = [{"host": name, "vars": said or {}} for name, said in example["nodes"]["hosts"].items()]
    assert len(told["hosts"]) == 3 and findings(told) == []
    everything = yaml.safe_load(
        "\n".join(
            line[2:]
            for line in (ROOT / "inventory/group_vars/all.yml").read_text().splitlines()
            if line.startswith("# fleet_")
        )
    )
    taken = {name.removeprefix("fleet_"): value for name, value in everything.items()}
    told["given"].update({name: taken[name] for name in ("wave", "cordon", "refused", "allow_dirty", "server_url")})
    assert [one.check for one in findings(told)] == []


def run_check(told: Told) -> dict[str, Any]:
    asked = {name: value for name, value in told.items() if name != "known"}
    done = subprocess.run(
        [sys.executable, "-B", FILES / "check.py", "settings"],
        input=json.dumps(asked).encode(),
        capture_output=True,
        check=True,
        cwd="/",
    )
    return json.loads(done.stdout)


def test_the_program_says_what_is_wrong_and_what_of_whom(told: Told) -> None:
    wrong = copy.deepcopy(told)
    of_one("agent_node_id", "Gpu_1")(wrong, Path())
    said = run_check(wrong)
    assert said["stopped"] == [] and list(said["refused"]) == ["one"]
    assert said["refused"]["one"][0].startswith("agent_node_id: found the text 'Gpu_1', wanted 1 to 63")
    assert said["short"] == ""
    given("refused", "halt")(wrong, Path())
    said = run_check(wrong)
    assert said["stopped"][0].startswith("fleet_refused: found the text 'halt', wanted skip or stop")
    assert said["table"].startswith("Preflight: nothing is done.\n\nREFUSED\n")
    assert said["short"] == said["stopped"][0]
    of_all, of_one_host = said["findings"]
    assert (of_all["host"], of_all["check"], of_all["wanted"], of_all["refuses"]) == (
        None,
        "fleet_refused",
        "skip or stop",
        True,
    )
    assert of_one_host["host"] == "one" and set(of_one_host) == {"host", "check", "found", "wanted", "do", "refuses"}


def test_many_reasons_are_named_in_one_short_sentence(told: Told) -> None:
    """The table and the findings say the rest."""
    for name in ("server_url", "api_key_file"):
        given(name, "")(told, Path())
    assert run_check(told)["short"] == "nothing is done because of key file, server URL; the findings say what to do"


def test_a_token_s_file_that_is_named_must_be_there_whatever_the_run_needs(told: Told) -> None:
    told["need"] = ["key", "builds"]
    given("token_file", "")(told, Path())
    assert findings(told) == []
    given("token_file", "/nowhere/token")(told, Path())
    (one,) = findings(told)
    assert (one.host, one.check, one.refuses) == (FLEET, "token file", True)
    assert one.found == "/nowhere/token: No such file or directory"


def test_a_fault_of_the_program_stops_the_run_and_shows_nothing_it_held(told: Told) -> None:
    told["hosts"] = [{"host": "one", "secret": KEY}]
    said = run_check(told)
    assert said["stopped"][0].startswith("the check itself failed: KeyError at inventory_rules.py:")
    assert KEY not in str(said)
