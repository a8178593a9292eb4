from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.agent_link.stub_server import StubServer, stub_server


@pytest.fixture
def server() -> Iterator[StubServer]:
    with stub_server() as one:
        yield one
