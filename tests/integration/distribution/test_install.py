"""The scripts on a lab node, against a real control plane: what they leave, and what they take back."""

from __future__ import annotations

import json
import subprocess
import threading

import pytest

from tests.integration.distribution.site import KEY, SCRIPT, UNIT, Site, changed, snapshot
from tests.lab import Lab
from tests.lab.process import wait_for


def test_from_a_bare_node_and_back(site: Site) -> None:
    before = snapshot(site.node)

    done = site.install("--key-file", KEY, "--label", "site=lab", "--label", 'note=a "b" #c')
    assert done.returncode == 0, done.stderr
    name = site.status()["node_id"]
    assert f"node {name} is registered" in done.stdout
    assert (site.property("ActiveState"), site.property("UnitFileState")) == ("active", "enabled")
    seen = site.plane.get(f"/api/v1/nodes/{name}")
    assert (seen["state"], seen["labels"]) == ("online", {"site": "lab", "note": 'a "b" #c'})
    release = site.node.run(["readlink", "/opt/heterofleet/current"]).stdout.strip().removeprefix("releases/")
    manifest = json.loads((site.plane.builds_dir / "manifest.json").read_text())
    entry = manifest["builds"]["amd64"]
    assert release == f"{manifest['version']}-{manifest['commit']}-{entry['sha256'][:8]}"
    folder = f"/opt/heterofleet/releases/{release}"
    modes = site.node.run(
        ["stat", "-c", "%a %U:%G %n", f"{folder}/heterofleet-agent", f"{folder}/agent.yaml"]
        + ["/etc/heterofleet/agent.yaml", "/etc/heterofleet/agent.key", f"/etc/systemd/system/{UNIT}"]
    ).stdout.splitlines()
    assert [line.split()[:2] for line in modes] == [[mode, "root:root"] for mode in ("755", "600", "600", "600", "644")]
    assert site.node.get(f"{folder}/agent.yaml") == site.node.get("/etc/heterofleet/agent.yaml")
    assert site.plane.key.encode() not in site.node.get("/etc/heterofleet/agent.yaml")

    pid = site.property("MainPID")
    again = site.install()
    assert again.returncode == 0, again.stderr
    assert "is there already" in again.stdout
    assert site.property("MainPID") == pid

    kept = site.uninstall()
    assert kept.returncode == 0, kept.stderr
    left = {line.split()[0] for line in snapshot(site.node)} - {line.split()[0] for line in before}
    assert {path for path in left if not path.startswith("/var/lib/heterofleet")} == {
        "/etc/heterofleet",
        "/etc/heterofleet/agent.yaml",
        "/etc/heterofleet/agent.key",
    }
    back = site.install()
    assert back.returncode == 0, back.stderr
    assert site.status()["node_id"] == name
    assert site.plane.get(f"/api/v1/nodes/{name}")["labels"]["site"] == "lab"

    gone = site.uninstall("--purge")
    assert (gone.returncode, gone.stderr) == (0, "")
    assert changed(before, snapshot(site.node)) == []
    assert site.property("LoadState") == "not-found"


def test_again_adopts_new_settings_and_keeps_the_operators_own(site: Site) -> None:
    assert site.install("--key-file", KEY, "--label", "site=one", "--mgmt-addr", "192.0.2.7").returncode == 0
    text = site.node.get("/etc/heterofleet/agent.yaml").decode()
    site.node.put("/etc/heterofleet/agent.yaml", text + "# ours\nvolumes_allow:\n- /data\n- /srv/x\n", 0o600)
    done = site.install("--label", "site=two")
    assert done.returncode == 0, done.stderr
    name = site.status()["node_id"]
    seen = site.plane.get(f"/api/v1/nodes/{name}")
    assert (seen["labels"], seen["host"]["mgmt_addr"]) == ({"site": "two"}, "192.0.2.7")
    assert site.node.get("/etc/heterofleet/agent.yaml").decode().endswith("# ours\nvolumes_allow:\n- /data\n- /srv/x\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--key-file", KEY, "--server", "http://198.18.0.1:9"], 4, "cannot reach http://198.18.0.1:9"),
        (["--key-file", KEY, "--server", "http://fleet.example"], 2, "plain http:// to fleet.example"),
        (["--key-file", "/root/nothing"], 2, "cannot read the key file /root/nothing"),
        (["--yes"], 2, "no key: give --key-file FILE"),
        (["--key-file"], 2, "--key-file needs a value"),
        (["--api-key", "x"], 2, "unknown option --api-key"),
        (["--key-file", KEY, "--label", "nonsense"], 2, "wanted K=V"),
        (["--key-file", KEY, "--version", "9.9.9"], 6, "wanted version 9.9.9"),
        (["--key-file", KEY, "--node-id", "Not An Id"], 2, "found the node_id"),
    ],
)
def test_every_refusal_has_its_code_and_leaves_nothing(site: Site, words: list[str], code: int, said: str) -> None:
    before = snapshot(site.node)
    done = site.install(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert changed(before, snapshot(site.node)) == []


def test_a_missing_build_ends_with_6(site: Site) -> None:
    listing = site.plane.builds_dir / "manifest.json"
    text = listing.read_text()
    before = snapshot(site.node)
    listing.unlink()
    try:
        done = site.install("--key-file", KEY)
    finally:
        listing.write_text(text)
    assert done.returncode == 6, done.stderr
    assert "heterofleet artifacts build" in done.stderr
    assert changed(before, snapshot(site.node)) == []


def test_dry_run_changes_nothing_and_shows_the_settings(site: Site) -> None:
    before = snapshot(site.node)
    done = site.install("--key-file", KEY, "--label", "a=b", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert 'labels: {"a": "b"}' in done.stdout
    assert site.plane.key not in done.stdout
    assert changed(before, snapshot(site.node)) == []


def test_no_start_installs_and_enables_only(site: Site) -> None:
    assert site.install("--key-file", KEY, "--no-start").returncode == 0
    assert (site.property("ActiveState"), site.property("UnitFileState")) == ("inactive", "enabled")


def test_settings_that_the_agent_refuses_are_taken_back_and_the_old_agent_runs_on(site: Site) -> None:
    assert site.install("--key-file", KEY).returncode == 0
    pid = site.property("MainPID")
    text = site.node.get("/etc/heterofleet/agent.yaml").decode()
    site.node.put("/etc/heterofleet/agent.yaml", text + "max_taskz: 5\n", 0o600)
    before = [line for line in snapshot(site.node) if not line.startswith("/var/lib/heterofleet")]
    done = site.install("--label", "site=new")
    assert done.returncode == 8, done.stderr
    assert "max_tasks" in done.stderr  # the nearest known one
    assert [line for line in snapshot(site.node) if not line.startswith("/var/lib/heterofleet")] == before
    assert site.property("MainPID") == pid


def test_a_heartbeat_that_nobody_confirms_is_taken_back_with_its_reason(site: Site) -> None:
    before = snapshot(site.node)

    def stop_when_fetched() -> None:
        # The key was right and the build is there; then the control plane goes away.
        site.node.sh("until ls /opt/heterofleet/releases/*/heterofleet-agent; do :; done 2>/dev/null")
        site.plane.stop()

    stopper = threading.Thread(target=stop_when_fetched)
    stopper.start()
    try:
        done = site.install("--key-file", KEY, timeout=200)
    finally:
        stopper.join()
        site.plane.start()
    assert done.returncode == 7, done.stderr
    assert f"no heartbeat within 60 s: {site.plane.url}" in done.stderr or "cannot reach" in done.stderr
    assert "the end of its journal" in done.stderr
    assert changed(before, snapshot(site.node)) == []


def test_a_command_of_somebody_else_stays_and_is_named(site: Site) -> None:
    site.node.put("/usr/local/bin/heterofleet-agent", "#!/bin/sh\necho older\n", 0o755)
    try:
        done = site.install("--key-file", KEY)
        assert done.returncode == 0, done.stderr
        assert "there is another copy, /usr/local/bin/heterofleet-agent" in done.stderr
        assert site.node.run(["/usr/local/bin/heterofleet-agent"]).stdout == "older\n"
        assert site.uninstall("--purge").returncode == 0
        assert site.node.run(["/usr/local/bin/heterofleet-agent"]).stdout == "older\n"
    finally:
        site.node.run(["rm", "-f", "/usr/local/bin/heterofleet-agent"])


def test_what_a_power_cut_left_half_done_is_taken_back_first(site: Site) -> None:
    # SIGKILL as soon as the first file of the settings is there: nothing could be taken back then.
    script = (
        f"sh {SCRIPT} --key-file {KEY} & child=$!; "
        "while [ ! -e /etc/heterofleet/agent.yaml ]; do :; done; kill -9 $child; wait $child"
    )
    assert site.node.run(["sh", "-c", script], check=False).returncode == 137
    assert site.node.run(["test", "-d", "/opt/heterofleet/.undo"]).returncode == 0
    done = site.install("--key-file", KEY)
    assert done.returncode == 0, done.stderr
    assert "an earlier run was cut short" in done.stdout
    assert site.node.run(["test", "-e", "/opt/heterofleet/.undo"], check=False).returncode == 1
    assert site.status()["registered"]


def test_a_pipe_works_and_other_shells_do(site: Site) -> None:
    piped = f"curl -fsSL {site.plane.url}/install-agent.sh | HETEROFLEET_API_KEY=$(cat {KEY}) sh -s -- --label via=pipe"
    done = site.node.run(["sh", "-c", piped], check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    again = site.install("--label", "via=bash", shell="bash")
    assert again.returncode == 0, again.stderr
    name = site.status()["node_id"]
    assert site.plane.get(f"/api/v1/nodes/{name}")["labels"] == {"via": "bash"}


def test_the_kernel_refuses_a_port(site: Site) -> None:
    assert site.install("--key-file", KEY).returncode == 0
    lines = site.node.get(f"/etc/systemd/system/{UNIT}").decode().splitlines()
    options = [word for line in lines if line.startswith("SystemCall") for word in ("-p", line)]
    code = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()"
    done = site.node.run(
        ["systemd-run", "--pipe", "--wait", "--quiet", "--collect", *options, "python3", "-c", code], check=False
    )
    assert done.returncode == 1
    assert "PermissionError: [Errno 1]" in done.stderr
    checked = site.node.run(["systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}"])
    assert [line for line in (checked.stdout + checked.stderr).splitlines() if UNIT in line] == []


@pytest.mark.case("FC-018")
def test_the_agent_outlives_a_stop_of_the_engine(site: Site) -> None:
    """The unit required the engine: an upgrade of Docker stopped the agent, and nothing started it again."""
    assert site.install("--key-file", KEY).returncode == 0
    name, pid = site.status()["node_id"], site.property("MainPID")

    def available() -> object:
        return (site.plane.get(f"/api/v1/nodes/{name}")["docker"] or {}).get("available")

    wait_for("the engine is reported", lambda: available() is True, 30, 0.2)
    site.node.stop_engine()
    wait_for("its absence is reported", lambda: available() is False, 30, 0.2)
    assert (site.property("ActiveState"), site.property("MainPID")) == ("active", pid)
    assert site.plane.get(f"/api/v1/nodes/{name}")["state"] == "online"
    site.node.start_engine()
    wait_for("the engine is reported again", lambda: available() is True, 30, 0.2)
    assert site.property("MainPID") == pid


def test_purge_does_not_leave_containers_without_a_word(site: Site) -> None:
    assert site.install("--key-file", KEY).returncode == 0
    archive = subprocess.run(["docker", "save", Lab().task_image], capture_output=True, check=True).stdout
    site.node.load_image(archive)
    site.node.docker(
        "run", "-d", "--name", "task-kept", "--label", "heterofleet.task=kept", Lab().task_image, "sleep", "300"
    )
    try:
        refused = site.uninstall("--purge")
        assert refused.returncode == 8
        assert "task containers run here" in refused.stderr
        site.node.docker("stop", "-t", "0", "task-kept")  # asleep, for all that anybody knows
        refused = site.uninstall("--purge")
        assert refused.returncode == 8
        assert "containers of tasks that do not run are still here" in refused.stderr
        site.node.docker("start", "task-kept")
        assert site.property("ActiveState") == "active"
        removed = site.uninstall()
        assert removed.returncode == 0, removed.stderr
        assert "task-kept" in removed.stdout
        assert site.node.docker("inspect", "-f", "{{.State.Running}}", "task-kept").stdout.strip() == "true"
    finally:
        site.node.docker("rm", "-f", "task-kept")
