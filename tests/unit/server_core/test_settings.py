"""server.yaml: where values come from, what is refused and how that is said."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from runtime.protocol.settings import SettingsError
from runtime.server.settings import ServerSettings, key_fault, load, with_keys

GOOD_KEY = "kZ3-8sLq_0pVw2Rt"


def faults(path: Path | None, text: str = "", environ: dict[str, str] | None = None) -> dict[str, tuple[str, str]]:
    if path is not None:
        path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load(path, environ=environ or {})
    return {fault.path: (fault.found, fault.wanted) for fault in refused.value.faults}


def test_environment_over_file_and_command_line_over_both(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("threads: 4\nconnection_limit: 50\nretention_days: 7\n")
    loaded = load(
        file,
        environ={"HETEROFLEET_THREADS": "5", "HETEROFLEET_CONNECTION_LIMIT": "60"},
        overrides={"connection_limit": 70},
    )
    assert (loaded.settings.threads, loaded.settings.connection_limit, loaded.settings.retention_days) == (5, 70, 7.0)
    assert loaded.origins["threads"] == "HETEROFLEET_THREADS"
    assert loaded.origins["connection_limit"] == "command line"
    assert loaded.origins["retention_days"] == str(file)
    assert loaded.origins["mps_max"] == "default"


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    found = faults(tmp_path / "s.yaml", "thread: 4\nlisten: everywhere\nbrake_fraction: 2\nmode: test\n")
    assert set(found) == {"thread", "brake_fraction", "mode"}
    assert "threads" in found["thread"][1]


@pytest.mark.parametrize(
    ("text", "path", "wanted"),
    [
        ("listen: everywhere", "listen", "host:port"),
        ("listen: host:99999", "listen", "host:port"),
        ("doorbell_listen: '3334x'", "doorbell_listen", "host:port"),
        ("trusted_proxies: [10.0.0.0/8, here]", "trusted_proxies.1", "an address or a network"),
        ("database_url: mysql://u:secretword@h/d", "database_url", "sqlite:///PATH or postgresql://USER@HOST/NAME"),
        ("public_url: 'http://a\"b'", "public_url", "text that matches"),
        ("threads: many", "threads", "a whole number"),
        ("heartbeat_interval_s: 61", "heartbeat_interval_s", "at most 60"),
        ("just text", None, "a mapping of settings"),
        ("a: [", None, "YAML"),
        ("api_key: 'unclosed-secretword", None, "YAML"),
    ],
)
def test_refused(tmp_path: Path, text: str, path: str | None, wanted: str) -> None:
    file = tmp_path / "s.yaml"
    found = faults(file, text)
    assert wanted in found[path or str(file)][1]
    assert "secretword" not in str(found)


def test_the_nearer_one_of_key_and_key_file_counts(tmp_path: Path) -> None:
    """What happened: a key in the environment was refused because the file named a key file."""
    file = tmp_path / "s.yaml"
    file.write_text("api_key_file: /nowhere\n")
    loaded = load(file, environ={"HETEROFLEET_API_KEY": "k-0123456789abcdef"})
    assert (loaded.settings.api_key, loaded.settings.api_key_file) == ("k-0123456789abcdef", None)
    assert loaded.origins["api_key_file"] == "api_key is nearer (HETEROFLEET_API_KEY)"
    file.write_text("api_key: k-0123456789abcdef\n")
    loaded = load(file, environ={"HETEROFLEET_API_KEY_FILE": "/nowhere"})
    assert (loaded.settings.api_key, loaded.settings.api_key_file) == (None, "/nowhere")
    file.write_text("api_key: k-0123456789abcdef\napi_key_file: /nowhere\n")
    with pytest.raises(SettingsError, match="only one of"):
        with_keys(load(file, environ={}).settings)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    assert faults_of_missing(tmp_path / "none.yaml") == "a readable file"


def faults_of_missing(path: Path) -> str:
    with pytest.raises(SettingsError) as refused:
        load(path, environ={})
    return refused.value.faults[0].wanted


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (None, "nothing"),
        ("", "nothing"),
        ("short", "5 characters"),
        ("a1b2c3d4e5f6g7h", "15 characters"),
        ("aaaaaaaaaaaaaaaaaaaa", "1 distinct"),
        ("abcdeabcdeabcdeabcde", "5 distinct"),
        ("heterofleetheterofleet", "known default"),
        ("HeteroFleet-12345678", "known default"),
        ("changemechangeme!!!!", "known default"),
        ("change-me-change-me", "known default"),
        ("xxxxxxsecretxxxxxx", "known default"),
        ("admin-test-default-dev", "known default"),
        ("with a space at end ", "header cannot carry"),
        ("ключ-который-не-годится", "header cannot carry"),
        ("line\nbreak-in-the-key-1", "header cannot carry"),
        (GOOD_KEY, None),
        ("device-Kq82hsXz0pLmW", None),
        ("rack-7-test-key-2026", None),
        ("secret-1234-secret-5678", "known default"),
        ("0000-changeme-0000-aaaa", "known default"),
    ],
)
def test_key(key: str | None, fault: str | None) -> None:
    found = key_fault(key)
    assert found is None if fault is None else fault in (found or "")


def test_a_random_key_is_good() -> None:
    assert all(key_fault(secrets.token_urlsafe(32)) is None for _ in range(2000))
    assert all(key_fault(secrets.token_hex(16)) is None for _ in range(2000))


def test_production_refuses_and_does_not_show_the_key() -> None:
    with pytest.raises(SettingsError) as refused:
        with_keys(ServerSettings(api_key="changemechangeme", api_key_previous="shortish"))
    assert [fault.path for fault in refused.value.faults] == ["api_key", "api_key_previous"]
    assert "changeme" not in str(refused.value)


def test_the_key_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(GOOD_KEY + "\n")
    settings, made = with_keys(ServerSettings(api_key_file=str(tmp_path / "key")))
    assert (settings.api_key, made) == (GOOD_KEY, False)
    assert GOOD_KEY not in repr(settings)


@pytest.mark.parametrize("api_key", [None, GOOD_KEY])
def test_a_key_file_that_is_missing_or_one_too_many(tmp_path: Path, api_key: str | None) -> None:
    with pytest.raises(SettingsError) as refused:
        with_keys(ServerSettings(api_key=api_key, api_key_file=str(tmp_path / "none")))
    assert refused.value.faults[0].path == "api_key_file"


def test_dev_mode_makes_a_key_and_stays_on_loopback() -> None:
    settings, made = with_keys(ServerSettings(mode="dev", listen="0.0.0.0:3333", doorbell_listen="[::1]:3334"))
    assert made
    assert key_fault(settings.api_key) is None
    assert (settings.listen, settings.doorbell_listen) == ("127.0.0.1:3333", "[::1]:3334")
    assert with_keys(ServerSettings(mode="dev"))[0].api_key != settings.api_key


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (None, "sqlite:////state/heterofleet.db"),
        ("postgresql://u@h/d", "postgresql+psycopg://u@h/d"),
        ("postgres://u@h/d", "postgresql+psycopg://u@h/d"),
        ("postgresql+psycopg://u@h/d", "postgresql+psycopg://u@h/d"),
    ],
)
def test_database_url(given: str | None, used: str) -> None:
    assert ServerSettings(state_dir="/state", database_url=given).effective_database_url == used
