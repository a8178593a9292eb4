from __future__ import annotations

from tests.lab.fixtures import *  # noqa: F403
