"""A Docker Engine of its own whose images and containers lie on a small ext4 file system."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab import places, task_image
from tests.lab.daemon import Daemon
from tests.lab.process import run

SIZE_MIB = 256
BRIDGE = "hf-small"
ADDRESS = "198.19.77.1/24"
INODES = 16_000


@dataclass(frozen=True)
class SmallEngine:
    """``root`` is where it keeps everything, a file system of its own; its network leads nowhere."""

    host: str
    root: Path

    def docker(self, *words: str, input: bytes | None = None) -> str:
        return run(["docker", "-H", self.host, *words], input=input).stdout.strip()

    @contextlib.contextmanager
    def filled(self, left_mib: int) -> Iterator[None]:
        """All bytes are taken but so many MiB."""
        ballast = self.root / "ballast"
        free = shutil.disk_usage(self.root).free // (1 << 20)
        run(["fallocate", "-l", f"{free - left_mib}MiB", ballast])
        try:
            yield
        finally:
            ballast.unlink()

    @contextlib.contextmanager
    def without_inodes(self) -> Iterator[None]:
        """No file can be made any more, though most bytes are free."""
        crumbs = self.root / "crumbs"
        crumbs.mkdir()
        try:
            for number in range(INODES):
                try:
                    (crumbs / str(number)).touch()
                except OSError:
                    break
            yield
        finally:
            shutil.rmtree(crumbs)


@contextlib.contextmanager
def small_engine() -> Iterator[SmallEngine]:
    holder = Path(tempfile.mkdtemp(prefix="small-", dir=places.make_folder(places.state())))
    image, root = holder / "image", holder / "root"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE_MIB << 20)
    daemon = Daemon("small-engine")
    made = SmallEngine(f"unix://{holder}/docker.sock", root)
    # A bridge of its own: an engine that is told to have none takes the machine's docker0 away.
    network = ["--bridge", BRIDGE, "--iptables=false", "--ip-forward=false", "--ip-masq=false"]
    keeps = ["--data-root", str(root), "--exec-root", str(holder / "run"), "--pidfile", str(holder / "pid")]
    try:
        run(["mkfs.ext4", "-q", "-F", "-m", "0", "-N", str(INODES), image])
        run(["mount", "-o", "loop", image, root])
        run(["ip", "link", "delete", BRIDGE], check=False)  # of a run that was killed
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "address", "add", ADDRESS, "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
        daemon.start(
            ["dockerd", "--host", made.host, *keeps, *network],
            lambda: run(["docker", "-H", made.host, "version"], check=False).returncode == 0,
        )
        made.docker("load", input=task_image.image().archive(task_image.NAME))
        yield made
    finally:
        daemon.stop()
        run(["ip", "link", "delete", BRIDGE], check=False)
        run(["umount", "-l", root], check=False)
        shutil.rmtree(holder, ignore_errors=True)
