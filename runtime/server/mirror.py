"""The static mirror that the control plane itself serves (``mirror_listen``): a folder of files, read-only.

The tree is what ``heterofleet artifacts publish`` writes, made from ``builds_dir`` at the start and whenever the
manifest there changes. It asks for no key, looks at no query and lists nothing: a path is a file of the tree, or 404.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import flask

from runtime.artifacts.errors import BuildError
from runtime.artifacts.folders import words
from runtime.artifacts.publish import AGENT, ALL_IN_ONE, publish
from runtime.protocol.manifest import FILE_NAME, Checksums, checksums, pieces
from runtime.server.files import Checked, answer
from runtime.server.open_files import MIRROR_CONNECTIONS
from runtime.server.serving import FINISH_S, Listener, plain_channel
from runtime.server.settings import ServerSettings

log = logging.getLogger(__name__)

THREADS = 4
"""Enough: a thread is held only until an answer begins, the file itself is sent from the loop."""
LOOK_EVERY_S = 2.0
"""How often the manifest of the builds is looked at."""
RETRY_S = 10.0
"""The pause after publishing failed: the builds may be on their way into their folder."""

KINDS = {FILE_NAME: "application/json", ALL_IN_ONE: "text/x-shellscript"}


class Mirror:
    """Serves and renews the tree in ``<state_dir>/mirror``. Raises ListenError when its address is taken."""

    def __init__(self, settings: ServerSettings) -> None:
        assert settings.mirror_listen
        self._listen = settings.mirror_listen
        self.folder = settings.state_path / "mirror"
        self._builds = settings.builds_path
        self._server_url = settings.public_url or ""
        self._listener = Listener(
            Tree(self.folder),
            settings.mirror_listen,
            "mirror_listen",
            channel=plain_channel,
            threads=THREADS,
            connection_limit=min(MIRROR_CONNECTIONS, settings.connection_limit),
            max_body=1 << 16,
        )
        self._mirror_url = own_url(settings.public_url, self._listener.port)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._listener.run, name="mirror", daemon=True),
            threading.Thread(target=self._renew, name="mirror-publish", daemon=True),
        ]

    @property
    def port(self) -> int:
        return self._listener.port

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask for the end; safe in a signal handler."""
        self._stopping.set()
        self._listener.stop()

    def join(self) -> None:
        """Wait until what is being sent is sent, or its time is over (as for the API)."""
        self.stop()
        for thread in self._threads:
            if thread.ident is not None:
                # Publishing may wait for another writer; being cut off there, it leaves the tree as it is.
                thread.join(FINISH_S + 5)

    def _renew(self) -> None:
        published: object = None
        said: str | None = None
        while True:
            state = _state(self._builds / FILE_NAME)
            wait = LOOK_EVERY_S
            if state != published or state is None:
                fault = self._publish()
                if fault is None:
                    published = state
                else:
                    wait = RETRY_S
                if fault is not None and fault != said:
                    log.warning("the mirror on %s is not renewed: %s", self._listen, fault)
                said = fault
            if self._stopping.wait(wait):
                return

    def _publish(self) -> str | None:
        """What cannot be published leaves the tree as it is: the builds of before are better than none.

        The reason when it failed.
        """
        try:
            published = publish(
                self._builds,
                self.folder,
                server_url=self._server_url,
                mirror_url=self._mirror_url,
                progress=lambda line: log.info("mirror: %s", line),
            )
        except BuildError as error:
            return str(error)
        except OSError as error:
            return words(error)
        except Exception as error:  # a fault of ours must not end the renewing: the next builds may be published
            log.exception("publishing the mirror failed")
            return f"{type(error).__name__}: {error}"
        log.info("the mirror has the builds %s/%s", published.manifest.version, published.manifest.commit)
        return None


def own_url(public_url: str | None, port: int) -> str:
    """Where nodes reach this mirror, as far as that is known: ``public_url``'s host with the mirror's port.

    Empty without a public_url; also with https, since what stands before the server then is not known to pass on
    the mirror's plain HTTP. The script then fetches from the control plane.
    """
    scheme, _, host = (public_url or "").partition("://")
    if scheme != "http":
        return ""
    name, colon, last = host.rpartition(":")
    bare = name if colon and last.isdigit() else host
    return f"http://{bare}:{port}"


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Tree:
    """The files below ``root`` as a WSGI application: GET and HEAD, nothing that is a link, hidden or a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._checked: Checked[Checksums] = Checked(lambda opened: checksums(pieces(opened)))

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return self._answer(environ)(environ, start_response)

    def _answer(self, environ: dict[str, Any]) -> flask.Response:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _text("A mirror is only read.", 405, Allow="GET, HEAD")
        path: str = environ.get("PATH_INFO", "")
        opened = open_below(self._root, path)
        if opened is None:
            return _text(
                f"There is no such file on this mirror. It has /{AGENT}/{FILE_NAME}, the builds that are named there "
                f"(make them with `heterofleet artifacts build` and publish them), and /{ALL_IN_ONE}.",
                404,
            )
        kind = KINDS.get(path.rpartition("/")[2], "application/octet-stream")
        try:
            return answer(environ, opened, self._checked.of(opened), kind)
        except BaseException:
            opened.close()
            raise


def open_below(root: Path, path: str) -> IO[bytes] | None:
    """The ordinary file at ``path`` (as in a URL, decoded) below ``root``; None when there is none to hand out.

    Each step is opened in the folder before it and never through a link, so nothing outside is reached, also while
    somebody changes the tree.
    """
    first, *steps = path.split("/")
    if first or not steps or any(not step or step.startswith(".") or "\0" in step for step in steps):
        return None
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            for step in steps[:-1]:
                folder = os.open(step, flags | os.O_DIRECTORY, dir_fd=folder)
                stack.callback(os.close, folder)
            handle = os.open(steps[-1], flags, dir_fd=folder)
        except (OSError, UnicodeError):
            return None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            return None
        return os.fdopen(handle, "rb")


def _text(text: str, status: int, **headers: str) -> flask.Response:
    return flask.Response(f"{text}\n", status, headers, content_type="text/plain; charset=utf-8")
