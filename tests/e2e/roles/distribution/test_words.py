"""What the roles' own programs conclude, without a host: differences, tables, FIPS, lines that are refused."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROLES = Path(__file__).resolve().parents[4] / "roles"
LOOK = ROLES / "distribution" / "files" / "look.py"
MANIFEST = {
    "version": "1.2.0",
    "commit": "abc",
    "dirty": False,
    "builds": {arch: {"md5": f"md5-{arch}", "sha256": f"{arch}-0123456789"} for arch in ("amd64", "arm64")},
}


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


words = loaded("distribution_words", ROLES / "distribution" / "filter_plugins" / "distribution.py")


def found(arch: str = "amd64", **other: Any) -> dict[str, Any]:
    build = MANIFEST["builds"][arch]  # type: ignore[index]
    release = f"1.2.0-abc-{build['sha256'][:8]}"
    node = {"release": release, "running_release": release, "arch": arch, **build, "whole": True, "enabled": True}
    return {**node, "node_id": "n1", **other}


HEARD = {"n1": {"state": "online", "agent": {"version": "1.2.0", "commit": "abc", "dirty": False}}}


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (found(), ""),
        (found("arm64"), ""),
        (found(md5=""), ""),  # a host under FIPS rules
        (found("arm64", sha256="other"), "sha256 other, wanted arm64-0123456789"),
        (found(md5="", sha256="other"), "sha256 other"),
        (found("arm64", release="1.2.0-abc-amd64-01"), "has 1.2.0-abc-amd64-01, wanted 1.2.0-abc-arm64-01 for arm64"),
        (found() | {"arch": "riscv64"}, "no build for its architecture riscv64"),
        (found(whole=False), "is not whole"),
        (found(running_release="1.1.0-old-12345678"), "1.1.0-old-12345678 runs, and the current release is"),
        (found(release=""), "no agent is installed"),
        (found(refused="this must run as root: set become"), "set become"),
        (found(node_id="n2"), "the control plane knows no node n2"),
        (None, "does not answer"),
    ],
)
def test_how_a_node_differs(one: dict[str, Any] | None, said: str) -> None:
    answer = words.node_differs(one, None, MANIFEST, HEARD)
    assert answer == "" if not said else said in answer


def test_what_the_control_plane_hears_counts_only_where_it_was_asked() -> None:
    other = {"n1": {"state": "online", "agent": {"version": "1.1.0", "commit": "old", "dirty": True}}}
    assert "hears 1.1.0/old-dirty, wanted 1.2.0/abc" in words.node_differs(found(), None, MANIFEST, other)
    assert words.node_differs(found(), None, MANIFEST, None) == ""


def test_two_hundred_hosts_make_one_short_table() -> None:
    hosts = [f"node-{number:03}" for number in range(200)]
    differs = dict.fromkeys(hosts[:150], "no agent runs") | {"node-199": "does not answer"}
    text = words.nodes_table(differs, hosts, "1.2.0/abc")
    assert len(text.splitlines()) < 10
    assert "and 138 more: no agent runs" in " ".join(text.split())
    assert "node-199: does not answer" in text and "ok, 1.2.0/abc" in text


def test_a_build_that_nobody_needs_may_be_missing() -> None:
    rows = [
        {"place": place, "arch": arch, "size": size, "problem": problem}
        for place in ("dist", "server")
        for arch, size, problem in (("amd64", 1, None), ("arm64", None, "no build for this architecture"))
    ]
    assert words.wrong(rows, ["amd64"]) == []
    assert len(words.wrong(rows, ["amd64", "arm64"])) == 2
    # One that is there has to be right, whoever needs it.
    rows[1] |= {"size": 1}
    assert [row["place"] for row in words.wrong(rows, ["amd64"])] == ["dist", "server"]


def test_nothing_is_called_good_when_no_control_plane_was_looked_at(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    rows = [{"place": place, "arch": "amd64", "size": 1, "problem": None} for place in ("dist", "mirror")]
    compared = {"stdout": json.dumps({"files": rows, "scripts": []})}
    given = (compared, ["amd64"], {"skipped": True}, {"a": {"agent_found": found()}}, ["a"], str(tmp_path))
    assert words.verdict(*given, "http://192.0.2.10:3333")["good"]
    told = words.verdict(*given, "")
    assert not told["good"] and told["text"].startswith("Not all")
    assert "set fleet_server_url" in told["text"] and told["equal"] == ["a"] and told["compared"]


def test_without_builds_nothing_is_compared() -> None:
    missing = {"stdout": "", "stderr": "builds/manifest.json: No such file"}
    told = words.verdict(missing, ["amd64"], {"skipped": True}, {}, ["a"], "builds", "http://192.0.2.10:3333")
    assert (told["good"], told["compared"], told["nodes"], told["equal"]) == (False, False, {}, [])
    assert told["text"] == "There is nothing to compare with.\nbuilds/manifest.json: No such file"


def look(folder: Path, before: str = "") -> dict[str, Any]:
    program = before + LOOK.read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-", str(folder), str(folder / "none")], input=program, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_md5_sees_the_change_and_where_a_host_has_none_sha256_does(tmp_path: Path) -> None:
    file = tmp_path / "heterofleet-agent-amd64-1"
    file.write_bytes(b"a build")
    file.chmod(0o644)
    wanted = {name: hashlib.new(name, b"a build").hexdigest() for name in ("md5", "sha256")}
    stage = [{"path": str(file), **wanted}]
    fips = (
        "import hashlib\n"
        "def new(name, *more, real=hashlib.new, **words):\n"
        "    if name == 'md5': raise ValueError('disabled for FIPS')\n"
        "    return real(name, *more, **words)\n"
        "hashlib.new = new\n"
    )
    for before, md5 in (("", wanted["md5"]), (fips, None)):
        file.write_bytes(b"a build")
        here = look(tmp_path, before)
        assert here["missing"] == [str(tmp_path / "none")]
        assert here["files"] == {str(file): {"mode": "0644", "md5": md5, "sha256": wanted["sha256"]}}
        assert words.change(stage, here, "0644")["write"] == []
        file.write_bytes(b"another")
        assert words.change(stage, look(tmp_path, before), "0644")["write"] == stage
    # A sum that says equal does not make it so.
    assert words.change(stage, {**here, "files": {str(file): {**wanted, "mode": "0644", "sha256": "x"}}}, "0644")[
        "write"
    ]


loaded("unix_http", ROLES.parent / "templates" / "_unix_http.py")
engine = loaded("engine", ROLES / "docker_engine" / "files" / "engine.py")
settings = loaded("settings", ROLES / "docker_engine" / "files" / "settings.py")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"hosts": ["tcp://0.0.0.0:2375"]}, "a node opens no port"),
        ({"live-restore": "yes"}, "live-restore: found 'yes', wanted a bool"),
        ({"data-root": "docker"}, "wanted a whole path"),
        ({"registry-mirrors": ["mirror:5000"]}, "wanted http"),
        ({"registry-mirrors": "http://mirror"}, "wanted a list"),
        ({"insecure-registries": ["http://mirror:5000"]}, "without a scheme"),
    ],
)
def test_lines_that_are_refused(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(engine.Refusal, match=said):
        settings.check(wanted)


def test_a_line_that_the_engine_was_started_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not start with both."""
    started = (1, ["/usr/bin/dockerd", "-H", "fd://", "--registry-mirror=http://other"])
    monkeypatch.setattr(engine, "process", lambda: started)
    with pytest.raises(engine.Refusal, match="take it out of its unit first"):
        settings.check({"registry-mirrors": ["http://mirror"]})
    settings.check({"live-restore": True})


def test_maps_are_merged_and_lists_take_the_place_of_lists() -> None:
    here = {"log-opts": {"max-size": "1m", "tag": "x"}, "dns": ["192.0.2.1"], "runtimes": {"nvidia": {"path": "p"}}}
    whole = settings.merged(here, {"log-opts": {"max-size": "9m"}, "dns": ["192.0.2.2"], "debug": True})
    assert whole == {
        "log-opts": {"max-size": "9m", "tag": "x"},
        "dns": ["192.0.2.2"],
        "runtimes": {"nvidia": {"path": "p"}},
        "debug": True,
    }
