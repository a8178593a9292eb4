"""The task image ``hf-lab/task:1``: Debian's static busybox and one shell script of behaviours (2 MB).

Made from bytes on this machine, since no public registry is in reach. What the script can do is at its top
(``task.sh``); the image's entrypoint is that script, so a task's command is just words::

    docker run --rm hf-lab/task:1 print hello sleep 2 exit 3
"""

from __future__ import annotations

import functools
from pathlib import Path

from tests.lab.images import Content, Image, layer
from tests.lab.process import run

NAME = "hf-lab/task:1"
REGISTRY_NAME = "lab/task:1"


@functools.cache
def image() -> Image:
    """The same busybox and scripts give the same image id."""
    here = Path(__file__).parent
    files: dict[str, Content] = {
        "bin/busybox": (Path("/bin/busybox").read_bytes(), 0o755),
        "bin/task": ((here / "task.sh").read_bytes(), 0o755),
        "bin/task-http": ((here / "task_http.sh").read_bytes(), 0o755),
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
        "etc/group": b"root:x:0:\nuser:x:1000:\n",
        "tmp/.keep": b"",
        "root/.keep": b"",
        "home/user/.keep": b"",
    }
    for applet in run(["/bin/busybox", "--list"]).stdout.split():
        files.setdefault(f"bin/{applet}", "busybox")
    return Image((layer(files),), entrypoint=["/bin/task"], command=["forever"])
