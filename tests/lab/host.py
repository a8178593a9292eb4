"""What the machine itself must have: root, cgroups, and a few Debian packages, installed when missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.lab.process import LabError, Progress, run

# What is looked for -> the Debian package that brings it.
NEEDED = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
    "docker-registry": "docker-registry",
    "htpasswd": "apache2-utils",
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "/bin/busybox": "busybox-static",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mkfs.ext4": "e2fsprogs",
}

# What the tests and checks look for beyond the lab.
FOR_TESTS = {
    "strace": "strace",
    "shellcheck": "shellcheck",
    "/usr/lib/postgresql/15/bin/initdb": "postgresql-15",
    "git": "git",
    "openssl": "openssl",
    "curl": "curl",
    "ps": "procps",
    "runuser": "util-linux",
    "setpriv": "util-linux",
    "qemu-aarch64-static": "qemu-user-static",
}


def missing_packages(needed: Mapping[str, str] = NEEDED) -> list[str]:
    """Packages to install, sorted; a needed program is looked up where a root shell would find it."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    absent = {
        package
        for name, package in needed.items()
        if not (Path(name).exists() if name.startswith("/") else shutil.which(name, path=path))
    }
    if "/bin/busybox" in needed and "busybox-static" not in absent and not _is_static(Path("/bin/busybox")):
        absent.add("busybox-static")
    return sorted(absent)


def ensure(progress: Progress, *, for_tests: bool = False) -> None:
    """Root, Linux with cgroups, and the packages; ``apt-get update`` runs at most once."""
    needed = {**NEEDED, **FOR_TESTS} if for_tests else NEEDED
    if os.geteuid() != 0:
        raise LabError("the lab starts containers, bridges and an engine: run it as root")
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
    if not Path("/sys/fs/cgroup").is_dir():
        raise LabError("/sys/fs/cgroup is not mounted: systemd and Docker need cgroups")
    packages = missing_packages(needed)
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise LabError(f"missing: {', '.join(packages)}; no apt-get here: the lab knows Debian 12 only")
    with progress.step(f"installing {' '.join(packages)}"):
        _install(packages)
    still = missing_packages(needed)
    if still:
        raise LabError(f"still missing after apt-get install: {', '.join(still)}")


def _install(packages: list[str]) -> None:
    # policy-rc.d keeps the packages' own services (docker-registry) from starting; a file that is already
    # there is the machine's own word and stays.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    try:
        if run(install, env=env, timeout=900, check=False).returncode != 0:
            run(["apt-get", "update"], env=env, timeout=600)
            run(install, env=env, timeout=900)
    finally:
        if ours:
            policy.unlink(missing_ok=True)


def _is_static(program: Path) -> bool:
    """A statically linked ELF file names no interpreter."""
    try:
        return b"ld-linux" not in program.read_bytes()[:4096]
    except OSError:
        return False
