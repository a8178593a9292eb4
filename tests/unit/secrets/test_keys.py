"""Which system keys a server starts with: none that a stranger would try."""

from __future__ import annotations

import base64
import itertools
import secrets
import string
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.agent.settings import load_settings
from runtime.protocol.settings import SettingsError
from runtime.server.settings import KNOWN_DEFAULT_KEYS, ServerSettings, key_fault, key_warnings, with_keys

GOOD = "kZ3-8sLq_0pVw2RtA91m"
OTHER = "mN7_qpL2-xRt5vWz77Qe"

SPELLINGS: dict[str, Callable[[str], str]] = {
    "repeated": lambda word: (word * 20)[:40],
    "repeated to the letter": lambda word: word * (16 // len(word) + 1),
    "with dashes": lambda word: "-".join([word] * 8),
    "with underscores": lambda word: "_".join([word] * 8),
    "letters apart": lambda word: ".".join(word * 4),
    "upper case": lambda word: (word * 8).upper(),
    "title case": lambda word: word.title() * 8,
    "mixed case": lambda word: "".join(c.upper() if n % 2 else c for n, c in enumerate(word * 8)),
    "padded with digits": lambda word: word + "1234567890" * 2,
    "padded before": lambda word: "00000000000" + word + "!!!!!",
    "padded with a letter": lambda word: word + "x" * 20,
    "padded with signs": lambda word: word.ljust(24, "!") + "#$%&/",
    "with a year": lambda word: f"{word}-2026-2026-2026",
    "with a row of letters": lambda word: word + "abcdefgh12",
    "in the middle": lambda word: f"12345678{word}87654321",
    "with another one": lambda word: f"{word}-test-admin-dev-secret",
    "with a separator inside": lambda word: "-".join([word[: len(word) // 2], word[len(word) // 2 :]] * 8),
}


@pytest.mark.parametrize("how", SPELLINGS)
@pytest.mark.parametrize("word", KNOWN_DEFAULT_KEYS)
def test_a_known_default_is_refused_however_it_is_spelt(word: str, how: str) -> None:
    key = SPELLINGS[how](word)
    fault = key_fault(key)
    assert fault is not None and key not in fault


@pytest.mark.parametrize(
    "key",
    [
        *(character * 16 for character in "a0-"),
        "abcde" * 10,
        "12345" * 10,
        "a1b2c3d4e5f6g7h",
        "change_me_change_me",
        "CHANGE ME CHANGE ME",
        "heteroflow:heteroflow",
    ],
)
def test_a_weak_key_is_refused(key: str) -> None:
    assert key_fault(key) is not None


def test_random_keys_of_every_make_are_taken() -> None:
    makers: list[Callable[[], str]] = [
        lambda: secrets.token_urlsafe(32),
        lambda: secrets.token_urlsafe(16),
        lambda: secrets.token_hex(32),
        lambda: base64.b64encode(secrets.token_bytes(32)).decode(),
        lambda: "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(32)),
        lambda: "-".join(secrets.token_hex(4) for _ in range(6)),
        lambda: f"prod-test-{secrets.token_urlsafe(32)}",
    ]
    assert [make() for make, _ in itertools.product(makers, range(500)) if key_fault(make()) is not None] == []


@pytest.mark.parametrize("key", [GOOD, "!#$%&'()*+,-./:;<=>?@[]^_`{|}~aB3", 'quo"te-and-back\\slash9X'])
def test_what_the_server_takes_an_agent_takes(key: str, tmp_path: Path) -> None:
    """A key that one of them takes and the other refuses makes a fleet that cannot be installed."""
    assert key_fault(key) is None
    (tmp_path / "key").write_text(key)
    loaded = load_settings(
        None, {"HETEROFLEET_SERVER_URL": "http://127.0.0.1:1", "HETEROFLEET_API_KEY_FILE": str(tmp_path / "key")}
    )
    assert loaded.settings.api_key == key


@pytest.mark.parametrize("key", ["with blanks in it 123", "tab\tin-the-middle-1", "é" * 20, "new\nline-0123456789"])
def test_what_an_agent_refuses_the_server_refuses(key: str) -> None:
    assert "header cannot carry" in (key_fault(key) or "")


@pytest.mark.parametrize(
    ("previous", "fault"),
    [
        (None, None),
        (OTHER, None),
        (GOOD, None),
        ("", "nothing"),
        ("short", "5 characters"),
        ("changeme" * 3, "known default"),
        ("a" * 20, "1 distinct"),
        (f"{OTHER}\n", "header cannot carry"),
    ],
)
def test_the_previous_key_is_held_to_the_same_rules(previous: str | None, fault: str | None) -> None:
    settings = ServerSettings(api_key=GOOD, api_key_previous=previous)
    if fault is None:
        assert with_keys(settings)[0].api_key_previous == previous
        return
    with pytest.raises(SettingsError) as refused:
        with_keys(settings)
    assert [found.path for found in refused.value.faults] == ["api_key_previous"]
    assert fault in str(refused.value)
    assert not previous or previous not in str(refused.value)


def test_the_same_key_twice_is_said() -> None:
    """Somebody who changed nothing believes that the key is changed."""
    assert "no key is being changed" in key_warnings(ServerSettings(api_key=GOOD, api_key_previous=GOOD))[0]
    assert key_warnings(ServerSettings(api_key=GOOD, api_key_previous=OTHER)) == []
    assert key_warnings(ServerSettings(api_key=GOOD)) == []


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o644, True)])
def test_a_key_file_that_is_open_to_others_is_said(tmp_path: Path, mode: int, warned: bool) -> None:
    file = tmp_path / "key"
    file.write_text(GOOD)
    file.chmod(mode)
    settings, _ = with_keys(ServerSettings(api_key_file=str(file)))
    found = key_warnings(settings)
    assert bool(found) == warned and GOOD not in str(found)


@pytest.mark.parametrize("data", [GOOD, f"{GOOD}\n", f"{GOOD}\r\n", f"\ufeff{GOOD}\r\n", f"\n{GOOD}\n\n"])
def test_the_servers_key_file_may_come_from_any_editor(tmp_path: Path, data: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(data.encode())
    assert with_keys(ServerSettings(api_key_file=str(file)))[0].api_key == GOOD


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe" + GOOD.encode("utf-16-le"), f"{GOOD}\n{OTHER}\n".encode()])
def test_a_key_file_that_holds_no_key_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(data)
    with pytest.raises(SettingsError) as refused:
        with_keys(ServerSettings(api_key_file=str(file)))
    assert GOOD not in str(refused.value)


@pytest.mark.parametrize("given", [None, ""])
def test_dev_mode_makes_a_key_where_none_is_given(given: str | None) -> None:
    first, made = with_keys(ServerSettings(mode="dev", api_key=given))
    second, _ = with_keys(ServerSettings(mode="dev", api_key=given))
    assert made and first.api_key != second.api_key
    assert key_fault(first.api_key) is None


def test_dev_mode_takes_any_key_that_a_header_carries() -> None:
    assert with_keys(ServerSettings(mode="dev", api_key="dev"))[1] is False
    with pytest.raises(SettingsError):
        with_keys(ServerSettings(mode="dev", api_key="two words"))


@pytest.mark.parametrize("name", ["listen", "doorbell_listen", "mirror_listen"])
@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("0.0.0.0:4000", "127.0.0.1:4000"),
        ("[::]:4000", "127.0.0.1:4000"),
        (":4000", "127.0.0.1:4000"),
        ("10.0.0.5:4000", "127.0.0.1:4000"),
        ("cp.example:4000", "127.0.0.1:4000"),
        ("127.0.0.9:4000", "127.0.0.9:4000"),
        ("[::1]:4000", "[::1]:4000"),
        ("localhost:4000", "localhost:4000"),
    ],
)
def test_dev_mode_listens_on_loopback_alone(name: str, given: str, used: str) -> None:
    settings, _ = with_keys(ServerSettings(mode="dev", **{name: given}))  # type: ignore[arg-type]
    assert getattr(settings, name) == used


def test_what_dev_mode_does_not_serve_stays_off() -> None:
    settings, _ = with_keys(ServerSettings(mode="dev", doorbell_listen="", mirror_listen=None))
    assert (settings.doorbell_listen, settings.mirror_listen) == ("", None)
