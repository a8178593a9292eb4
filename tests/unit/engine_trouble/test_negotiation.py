"""Which version of the API is spoken with which engine."""

from __future__ import annotations

import pytest

from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.drivers.negotiation import choose


@pytest.mark.case("FC-019")
@pytest.mark.parametrize(
    ("highest", "lowest", "spoken"),
    [
        ("1.41", "1.12", "1.41"),
        ("1.41", None, "1.41"),
        ("1.51", "1.24", "1.51"),
        ("1.52", "1.44", "1.51"),
        ("1.60", "1.44", "1.51"),
        ("1.60", "1.54", "1.54"),
        ("2.1", "2.0", "2.0"),
        ("1.25", "1.12", "1.25"),
    ],
)
def test_the_newest_that_both_know(highest: str, lowest: str | None, spoken: str) -> None:
    """A Docker that dropped old versions was not spoken to any more by agents that named one of them."""
    assert choose({"ApiVersion": highest, "MinAPIVersion": lowest}) == spoken


def test_an_engine_that_is_too_old_is_told_apart_in_words() -> None:
    with pytest.raises(EngineUnavailable, match=r"goes up to 1\.24 \(engine 1\.12\.6\).*1\.25 or later: update Docker"):
        choose({"ApiVersion": "1.24", "MinAPIVersion": "1.12", "Version": "1.12.6"})


@pytest.mark.parametrize(
    "said",
    [None, [], "1.41", {}, {"ApiVersion": 1.41}, {"ApiVersion": "latest"}, {"ApiVersion": ["1.41"]},
     {"ApiVersion": "1.41", "MinAPIVersion": "old"}, {"ApiVersion": "1.41\n"}, {"ApiVersion": "9" * 5000}],
)  # fmt: skip
def test_what_is_no_answer(said: object) -> None:
    with pytest.raises(EngineUnavailable):
        choose(said)
