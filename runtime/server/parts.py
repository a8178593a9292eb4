"""Everything a running control plane is made of, built in one place and started and stopped in order."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

from runtime.protocol.heartbeat import Heartbeat, LostRevisions
from runtime.protocol.masking import Masker
from runtime.server import validation
from runtime.server.proxies import Proxies
from runtime.server.services.background import Background
from runtime.server.services.board import Board
from runtime.server.services.brake import Brake
from runtime.server.services.history import History
from runtime.server.services.metrics import Metrics
from runtime.server.services.presence import Presence
from runtime.server.services.rollback import Rollback
from runtime.server.services.tasks import confidential
from runtime.server.settings import ServerSettings
from runtime.server.store.database import Database
from runtime.server.store.migrate import migrate
from runtime.server.store.vault import Vault

log = logging.getLogger(__name__)


@dataclass
class Parts:
    """What requests and background work share.

    ``ready`` is set once the database is migrated and everything was loaded from it; until then requests are
    answered with ``starting``. ``brake`` is what the last round decided. ``answers`` keeps, by node id, the
    encoded part of its heartbeat answer that stays, with what it was made from. ``started_at`` is on the
    monotonic clock.
    """

    settings: ServerSettings
    masker: Masker
    db: Database
    vault: Vault
    presence: Presence
    board: Board
    rollback: Rollback
    metrics: Metrics
    history: History
    proxies: Proxies
    brake: Brake = field(default_factory=Brake)
    answers: dict[str, tuple[tuple[int, str, LostRevisions | None], str]] = field(default_factory=dict)
    background: Background | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    started_at: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Migrate, load, and start the background work. Raises StoreError with one clear sentence."""
        validation.adapter(Heartbeat)  # built before the first beat, which should not wait for it
        migrate(self.db)
        self.db.hold()
        self.db.start()
        with self.db.read() as connection:
            confidential.load_key(connection, self.vault)
        self.started_at = time.monotonic()
        self.rollback.load()
        self.presence.load()
        self.board.load()
        self.background = Background(self)
        self.background.start()
        self.ready.set()

    def stop(self) -> None:
        """Stop in the opposite order; what was heard last is flushed before the database is closed."""
        self.ready.clear()
        if self.background is not None:
            self.background.stop()
            self.background = None
        self.db.close()


def build_parts(settings: ServerSettings) -> Parts:
    """The parts of one server process, not yet started. ``settings`` come from ``settings.with_keys``."""
    masker = Masker()
    for secret in (settings.api_key, settings.api_key_previous):
        masker.add(secret)
    db = Database(settings.effective_database_url)
    masker.add(db.url.password)
    presence = Presence(db, settings)
    return Parts(
        settings=settings,
        masker=masker,
        db=db,
        vault=Vault(settings.secret_key_path),
        presence=presence,
        board=Board(db),
        rollback=Rollback(db),
        metrics=Metrics(db),
        history=History(presence),
        proxies=Proxies(settings.trusted_proxies),
    )
