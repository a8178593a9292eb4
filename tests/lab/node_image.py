"""The nodes' root file system: a Debian release with systemd, sshd and a Docker Engine, as a docker image.

Built once by debootstrap (a minute) from the mirror that this machine's own apt uses; kept as the image
``hf-lab-node:<hash of the recipe>`` and as a tarball in the cache, so that a lost engine folder costs a
`docker load` only. A changed recipe has another hash and is built anew. Nodes are bookworm unless a test asks for
another release, whose images have its name before the hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.lab import places
from tests.lab.engine import docker
from tests.lab.process import LabError, Progress, run

SUITE = "bookworm"


@dataclass(frozen=True)
class Release:
    """What nodes of a Debian release need besides."""

    packages: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


RELEASES = {
    "bullseye": Release(),
    SUITE: Release(),
    "trixie": Release(
        packages=("docker-cli",),  # not part of docker.io any more
        commands=(
            # Its systemd starts on a machine with cgroup v1 only when told so; in a container it reads its own words.
            "sed -i 's,^exec .*systemd$,& SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1,' /usr/local/lib/hf-lab/init",
            # Its engine starts no container where it cannot turn IPv6 off, as on a machine that has none.
            "mkdir -p /etc/systemd/system/docker.service.d && printf '[Service]\\n"
            "Environment=DOCKER_ALLOW_IPV6_ON_IPV4_INTERFACE=1\\n' > /etc/systemd/system/docker.service.d/hf-lab.conf",
        ),
    ),
}
PACKAGES = (  # noqa: SIM905 (one word a line would read worse)
    "systemd systemd-sysv dbus python3 curl ca-certificates iproute2 iptables procps openssh-server sudo "
    "docker.io strace libfaketime"
).split()
_HERE = Path(__file__).parent / "node_files"
# Path in the node -> file beside this module, and its mode.
FILES = {
    "/usr/local/lib/hf-lab/init": ("init.sh", 0o755),
    "/etc/ssh/sshd_config.d/hf-lab.conf": ("sshd.conf", 0o644),
}
COMMANDS = (
    "useradd --create-home --shell /bin/bash ops",
    "echo 'ops ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ops && chmod 0440 /etc/sudoers.d/ops",
    "systemctl enable ssh.service docker.service containerd.service",
    # Timers of a host that lives for years would only disturb tests, and the console is nobody's.
    "systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer "
    "fstrim.timer console-getty.service getty@tty1.service getty-static.service",
    "mkdir -p -m 0700 /root/.ssh && install -d -m 0700 -o ops -g ops /home/ops/.ssh",
    "mkdir -p /var/lib/hf-lab && : > /etc/machine-id && rm -f /var/lib/dbus/machine-id",
    "apt-get clean; rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /usr/share/doc/* /usr/share/man/*",
)

REPOSITORY = "hf-lab-node"


def recipe_hash(suite: str = SUITE) -> str:
    """Twelve digits that change with anything that goes into the image."""
    recipe = {
        "suite": suite,
        "packages": [*PACKAGES, *RELEASES[suite].packages],
        "files": {path: [(_HERE / name).read_text(), mode] for path, (name, mode) in FILES.items()},
        "commands": [*COMMANDS, *RELEASES[suite].commands],
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]


def name(suite: str = SUITE) -> str:
    """The recipe's hash, after the release where it is not the usual one."""
    return recipe_hash(suite) if suite == SUITE else f"{suite}-{recipe_hash(suite)}"


def tag(suite: str = SUITE) -> str:
    return f"{REPOSITORY}:{name(suite)}"


def tarball(suite: str = SUITE) -> Path:
    return places.cache() / f"node-{name(suite)}.tar"


def ensure(progress: Progress, suite: str = SUITE) -> str:
    """The image's tag; present in the machine's engine when this returns."""
    if suite not in RELEASES:
        raise LabError(f"nodes of {suite}: wanted {', '.join(RELEASES)}")
    if docker("images", "-q", tag(suite)):
        return tag(suite)
    if not tarball(suite).exists():
        _build(progress, suite)
    with progress.step(f"loading the node image ({suite}) into the engine"):
        docker("import", "-c", 'CMD ["/usr/local/lib/hf-lab/init"]', str(tarball(suite)), tag(suite), timeout=300)
    _forget_older(suite)
    return tag(suite)


def _mirror() -> str:
    """The address this machine's apt takes bookworm from; nothing is written down here."""
    done = run(["apt-get", "indextargets", "--format", "$(RELEASE)|$(REPO_URI)"])
    for line in done.stdout.splitlines():
        release, _, address = line.partition("|")
        if release == SUITE and address:
            return address
    raise LabError(
        f"apt on this machine knows no source of {SUITE} (found: {done.stdout.split()}): "
        "add one to /etc/apt/sources.list.d and run apt-get update"
    )


def _build(progress: Progress, suite: str) -> None:
    places.make_folder(places.cache())
    root = places.cache() / "node-root.building"
    log = places.make_folder(places.logs()) / f"debootstrap-{suite}.log"
    debs = places.make_folder(places.cache() / "debs")
    shutil.rmtree(root, ignore_errors=True)
    try:
        with progress.step(f"debootstrap {suite} (once; log: {log})"):
            done = run(
                [
                    "debootstrap",
                    "--variant=minbase",
                    f"--include={','.join((*PACKAGES, *RELEASES[suite].packages))}",
                    f"--cache-dir={debs}",
                    suite,
                    root,
                    _mirror(),
                ],
                timeout=1200,
                check=False,
            )
            log.write_text(done.stdout + done.stderr)
            if done.returncode != 0:
                tail = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
                raise LabError(f"debootstrap ended with {done.returncode}; the end of {log}:\n{tail}")
        with progress.step(f"finishing the node's root ({suite})"):
            _copy_apt_settings(root, suite)
            _copy_files(root)
            for command in (*COMMANDS, *RELEASES[suite].commands):
                run(["chroot", root, "/bin/sh", "-c", command], env={"PATH": os.defpath + ":/usr/sbin:/sbin"})
            whole = tarball(suite).with_suffix(".new")
            run(["tar", "-C", root, "--one-file-system", "-cf", whole, "."], timeout=300)
            whole.replace(tarball(suite))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _copy_apt_settings(root: Path, suite: str) -> None:
    """So that `apt-get` works on the nodes too, from where this machine gets its packages."""
    # This machine's sources are those of its own release: debootstrap has written one for another.
    sources = ("sources.list", "sources.list.d") if suite == SUITE else ()
    if sources:
        (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for entry in (*sources, "apt.conf.d", "keyrings", "trusted.gpg.d", "preferences.d"):
        source = Path("/etc/apt") / entry
        if source.is_dir():
            shutil.copytree(source, root / "etc/apt" / entry, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, root / "etc/apt" / entry)
    for keyring in Path("/usr/share/keyrings").glob("*"):
        shutil.copy2(keyring, root / "usr/share/keyrings" / keyring.name)
    for certificate in Path("/usr/local/share/ca-certificates").glob("**/*.crt"):
        shutil.copy2(certificate, root / "usr/local/share/ca-certificates" / certificate.name)
    run(["chroot", root, "update-ca-certificates"], check=False)


def _copy_files(root: Path) -> None:
    for path, (name, mode) in FILES.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_HERE / name, target)
        target.chmod(mode)


def forget() -> None:
    """Remove every node image from the machine's engine; tarballs go with the cache."""
    for name in docker("images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY).split():
        run(["docker", "rmi", "--force", name], check=False)


def _forget_older(suite: str) -> None:
    """Images and tarballs of earlier recipes; one that a node still uses stays until that node goes."""
    own = re.compile("[0-9a-f]{12}" if suite == SUITE else f"{suite}-[0-9a-f]{{12}}")
    for old in docker("images", "--format", "{{.Tag}}", REPOSITORY).split():
        if own.fullmatch(old) and old != name(suite):
            run(["docker", "rmi", f"{REPOSITORY}:{old}"], check=False)
    for old_file in places.cache().glob("node-*.tar"):
        if own.fullmatch(old_file.stem.removeprefix("node-")) and old_file != tarball(suite):
            old_file.unlink(missing_ok=True)
