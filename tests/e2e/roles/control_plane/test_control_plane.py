"""The control plane by its role on a host: fresh, again, upgraded, taken back, rolled back."""

from __future__ import annotations

import base64
import urllib.parse

import pytest

from runtime.server.store.migrate import head
from tests.e2e.roles.control_plane.server_builds import NEXT, ServerBuilds
from tests.e2e.roles.control_plane.site import Site
from tests.lab.simulated_node import SimulatedNode

pytestmark = pytest.mark.timeout(1500)  # one roll-out after another, on a machine that does other things, too
FILES = "stat -c '%a %U %n' /etc/heterofleet/* /var/lib/heterofleet/server/*.db /var/lib/heterofleet/server/secret.key"


def test_a_bare_host_gets_a_control_plane_and_the_second_run_changes_nothing(site: Site) -> None:
    before = site.tree()
    checked = site.play("first", "--check", "--diff")
    assert site.tree() == before
    assert site.outcome(checked)["result"] == "changed"
    assert "public_url:" in checked.stdout

    made = site.play("first", "-vvv", "--diff")
    release = site.builds.release("first")
    assert (site.outcome(made)["result"], site.current()) == ("changed", release)
    status, answer = site.preflight(site.key)
    assert (status, answer["server_version"]) == (200, release.partition("-")[0])
    assert site.preflight("another-key-of-32-characters-00")[0] == 401
    assert site.tasks() == set()  # with the token that the role has put on the controller
    assert (site.folder / "token").stat().st_mode & 0o777 == 0o600
    token = (site.folder / "token").read_text().strip()
    for secret in (site.key, token):
        for form in (secret, base64.b64encode(secret.encode()).decode(), urllib.parse.quote_plus(secret)):
            assert form not in made.output
    for line in site.sh(FILES).splitlines():
        assert line.startswith("600 heterofleet "), line
    assert site.sh(f"cat /proc/{site.process()}/status | grep -E '^(Uid|CapEff|NoNewPrivs)'").split() == [
        *("Uid:", *[site.sh("id -u heterofleet").strip()] * 4),
        *("CapEff:", "0" * 16, "NoNewPrivs:", "1"),
    ]
    assert site.sh("curl -fsS http://127.0.0.1:3333/install-agent.sh").startswith("#!/bin/sh")

    process, tree = site.process(), site.tree()
    again = site.play("first", "--diff")
    assert again.changed == {}
    assert site.outcome(again)["result"] == "unchanged"
    assert (site.process(), site.tree()) == (process, tree)

    # What runs decides, and not what this run has written: a process with other settings than the file's is replaced.
    site.sh("sed -i 's/^public_url.*/heartbeat_interval_s: 7/' /etc/heterofleet/server.yaml")
    assert site.outcome(site.play("first"))["result"] == "changed"
    assert "heartbeat_interval_s" not in site.sh("cat /etc/heterofleet/server.yaml")
    assert site.process() != process


def test_an_upgrade_is_tried_first_and_what_does_not_come_up_is_taken_back(
    site: Site, server_builds: ServerBuilds
) -> None:
    site.play("first")
    identity = site.preflight(site.key)[1]["control_plane_id"]
    if "before" not in site.tasks():
        site.create_task("before")
    first = server_builds.release("first")
    process = site.process()

    # A migration that this data does not take: nothing was touched, not even for a moment.
    stuck = site.play("stuck", check=False)
    assert stuck.rc != 0
    assert "this data does not fit" in stuck.failures[site.node.name]
    assert (site.process(), site.current(), site.database()["schema"]) == (process, first, head())

    # A server that ends after its migration: the old one serves again, with the old database.
    dead = site.play("dead", check=False)
    assert dead.rc != 0
    came = site.outcome(dead)
    assert (came["result"], came["from"]) == ("restored", first)
    assert "this build ends at once" in came["reason"]
    assert f"{first} serves again" in dead.failures[site.node.name]
    assert (site.current(), site.database()["schema"], site.tasks()) == (first, head(), {"before"})
    copies = site.sh("stat -c '%a %U' /var/lib/heterofleet/server/backups/*").splitlines()
    assert set(copies) == {"600 heterofleet"}

    newer = site.play("newer")
    assert site.outcome(newer)["result"] == "changed"
    tried = newer.results("Stop where the trial failed", status="ok")[-1]["said"]["msg"]
    assert f"from schema {head()} to {NEXT}" in tried
    assert (site.current(), site.database()["schema"]) == (server_builds.release("newer"), NEXT)
    assert (site.tasks(), site.preflight(site.key)[1]["control_plane_id"]) == ({"before"}, identity)

    # Back: not silently over what was done since.
    site.create_task("after")
    refused = site.rollback(check=False)
    assert refused.rc != 0
    assert "would be lost" in refused.failures[site.node.name]
    assert site.tasks() == {"before", "after"}
    back = site.rollback(control_plane_rollback_loses_data=True)
    assert site.outcome(back)["result"] == "changed"
    assert (site.current(), site.database()["schema"], site.tasks()) == (first, head(), {"before"})
    # A node that has seen more than this database knows: nothing is judged until somebody says what is true.
    node = SimulatedNode(site.url, site.key, "gpu-a")
    assert node.beat(seen_revision=10**6)[0] == 200
    assert site.ask("GET", "/readyz")[1]["rolled_back"]["on"] is True
    # The state that was left is among the backups.
    assert site.sh(f"ls /var/lib/heterofleet/server/backups | grep -c '_{NEXT}.db$'").strip() == "1"
