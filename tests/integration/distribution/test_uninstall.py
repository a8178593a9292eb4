"""Removing the agent: from whatever state, twice, and never more than what is ours."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.distribution.site import KEY, UNIT, Site, changed, snapshot
from tests.lab import Lab

REMOVE = "/root/uninstall-agent.sh"


@pytest.fixture
def bare(site: Site) -> Iterator[list[str]]:
    """The node before anything, and the same again at the end."""
    before = snapshot(site.node)
    yield before
    assert changed(before, snapshot(site.node)) == []


def remove(site: Site, *words: str, setup: str = "") -> subprocess.CompletedProcess[str]:
    """Uninstall where ``setup`` has changed what the script sees of the node."""
    script = f'mount --make-rprivate /\n{setup}\nexec sh {REMOVE} "$@"'
    return site.node.run(["unshare", "-m", "sh", "-euc", script, "sh", *words], check=False)


# Left by hands, by power cuts and by other tools: each is one shell line on a node without an agent.
HALF = {
    "nothing": ":",
    "a folder without a unit": "mkdir -p /opt/heterofleet/releases/x; ln -s releases/x /opt/heterofleet/current",
    "a unit without a folder": f"printf '[Service]\\nExecStart=/bin/true\\n' >/etc/systemd/system/{UNIT}",
    "an enabled unit that is gone": f"ln -s /etc/systemd/system/{UNIT} /etc/systemd/system/multi-user.target.wants/",
    "settings that were half written": "mkdir /etc/heterofleet; cd /etc/heterofleet; touch agent.yaml.new agent.key",
    "a link to nowhere": "ln -s /opt/heterofleet/current/heterofleet-agent /usr/local/bin/",
    "a run that was cut short": "mkdir -p /opt/heterofleet/.undo/files; touch /opt/heterofleet/.undo/made",
    "a file for the folder": "echo x >/opt/heterofleet",
}  # fmt: skip


def test_from_every_half_state_nothing_is_left_and_twice_is_fine(site: Site, bare: list[str]) -> None:
    for name, line in HALF.items():
        site.node.sh(line)
        would = remove(site, "--purge", "--dry-run")
        done = remove(site, "--purge")
        assert (done.returncode, done.stderr, name) == (0, "", name)
        said = done.stdout.splitlines()
        assert [text.replace("would remove", "removed") for text in would.stdout.splitlines()][: len(said) - 1] == (
            said[:-1]
        ), name
        again = remove(site, "--purge")
        assert (again.returncode, name) == (0, name), again.stderr
        assert again.stdout == "heterofleet: no agent was installed here, and nothing is left of one\n"
        assert changed(bare, snapshot(site.node)) == [], name


def test_an_agent_whose_unit_was_deleted_by_hand_is_stopped(site: Site, bare: list[str]) -> None:
    assert site.install("--key-file", KEY).returncode == 0
    pid = site.property("MainPID")
    site.node.run(["rm", f"/etc/systemd/system/{UNIT}"])
    done = remove(site, "--purge")
    assert done.returncode == 0, done.stderr
    assert site.node.run(["test", "-d", f"/proc/{pid}"], check=False).returncode == 1
    for path in ("/opt/heterofleet", "/etc/heterofleet/agent.key", "/var/lib/heterofleet/agent"):
        assert f"heterofleet: removed {path}\n" in done.stdout


# docker cannot tell whether tasks run: it fails, or there is none of it beside an engine.
UNKNOWN = {
    "docker ps fails": ("mount --bind /bin/false /usr/bin/docker", "docker ps ended with 1"),
    "no docker command": ("mount --bind /dev/null /usr/bin/docker", "no docker command to ask it with"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_engine_that_does_not_answer_is_not_taken_for_no_containers(site: Site, bare: list[str], name: str) -> None:
    setup, words = UNKNOWN[name]
    assert site.install("--key-file", KEY, "--no-start").returncode == 0
    installed = snapshot(site.node, times=True)
    done = remove(site, "--purge", setup=setup)
    assert done.returncode == 8, done.stderr
    assert "nobody can tell whether task containers run here" in done.stderr and words in done.stderr
    assert changed(installed, snapshot(site.node, times=True)) == []
    # Without --purge nothing is lost that supervises them; it is said all the same.
    done = remove(site, setup=setup)
    assert done.returncode == 0, done.stderr
    assert "nobody can tell whether task containers still run here" in done.stdout
    assert remove(site, "--purge", "--yes", setup=setup).returncode == 0


def test_a_refusal_of_the_host_is_5_and_touches_nothing(site: Site) -> None:
    before = snapshot(site.node, times=True)
    done = remove(site, "--purge", "--yes", setup="mount -t tmpfs none /run/systemd")
    assert (done.returncode, done.stdout) == (5, "")
    assert "no /run/systemd/system" in done.stderr
    assert changed(before, snapshot(site.node, times=True)) == []


@pytest.mark.parametrize("place", ["/opt/heterofleet/cache/other", "/var/lib/heterofleet/agent/with blank"])
@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_what_is_mounted_below_is_never_removed(site: Site, bare: list[str], place: str, kind: str) -> None:
    """A removal that goes through a mount deletes somebody's data, or another machine's."""
    how = "-t tmpfs none" if kind == "tmpfs" else "--bind /srv/hf-trap"
    site.node.sh(f"mkdir -p /srv/hf-trap '{place}'; mount {how} '{place}'; echo mine >'{place}/trap'")
    try:
        done = site.uninstall("--purge", "--yes")
        assert done.returncode == 8, done.stdout
        assert "a file system is mounted at " in done.stderr and "nothing was removed" in done.stderr
        assert site.node.get(f"{place}/trap") == b"mine\n"
    finally:
        site.node.sh(f"umount '{place}'; rm -r /srv/hf-trap")
    assert site.uninstall("--purge", "--yes").returncode == 0


def test_volumes_that_no_container_uses_are_unmounted_and_others_stay(site: Site, bare: list[str]) -> None:
    pins = "/run/heterofleet/volumes"
    archive = subprocess.run(["docker", "save", Lab().task_image], capture_output=True, check=True).stdout
    site.node.load_image(archive)
    site.node.sh(
        "mkdir -p -m 700 /run/heterofleet; mkdir -p /srv/hf-trap/sub; echo mine >/srv/hf-trap/sub/trap\n"
        f"for n in orphan used; do mkdir -p {pins}/$n/0; mount --bind /srv/hf-trap {pins}/$n/0; done\n"
        f"mkdir {pins}/file; touch {pins}/file/0; mount --bind /srv/hf-trap/sub/trap {pins}/file/0\n"
        f"mkdir -p {pins}/empty/0 {pins}/full/0; echo mine >{pins}/full/0/trap"
    )
    volume = f"{pins}/used/0:/data"
    site.node.docker(
        *("run", "-d", "--name", "task-kept", "--label", "heterofleet.task=kept", "-v", volume),
        *(Lab().task_image, "sleep", "300"),
    )
    try:
        done = site.uninstall("--purge", "--yes")
        assert done.returncode == 0, done.stderr
        mounted = site.node.sh("awk '{print $5}' /proc/self/mountinfo | grep ^/run/heterofleet").splitlines()
        assert mounted == [f"{pins}/used/0"]
        assert site.node.docker("exec", "task-kept", "cat", "/data/sub/trap").stdout == "mine\n"
        # What is not a mount and not empty is nothing that we know of.
        assert site.node.sh(f"cd {pins}; find . -type f | sort") == "./full/0/trap\n./used/0/sub/trap"
        assert site.node.get("/srv/hf-trap/sub/trap") == b"mine\n"
    finally:
        site.node.docker("rm", "-f", "task-kept")
        site.node.sh(f"umount {pins}/used/0; rm -r --one-file-system /run/heterofleet /srv/hf-trap")


def test_the_agents_own_empty_mount_and_its_lock_go(site: Site, bare: list[str]) -> None:
    pins = "/run/heterofleet/volumes"
    site.node.sh(f"mkdir -p -m 700 {pins}; mount --bind {pins} {pins}; touch /run/heterofleet/.volumes.lock")
    try:
        done = site.uninstall("--purge")
        assert done.returncode == 0, done.stderr
        left = site.node.sh("find /run -path '*heterofleet*'; grep heterofleet /proc/self/mountinfo || true")
        assert left == ""
    finally:
        site.node.sh(f"umount {pins} || true; rm -rf --one-file-system /run/heterofleet")
