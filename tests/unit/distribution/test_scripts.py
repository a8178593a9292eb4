"""What goes into scripts, and the helper inside them, as tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runtime.artifacts import scripts
from runtime.protocol.address import AddressError, parse_server_url
from runtime.protocol.names import is_node_id
from runtime.protocol.problems import Problem
from runtime.server.services import builds

HELPER = scripts.templates_folder() / "_helper.py"


def helper(*arguments: str, key: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    """The helper as the scripts call it: its text as an argument, the key on standard input."""
    done = subprocess.run(
        [sys.executable, "-Ic", HELPER.read_text(), *arguments],
        input=key.encode() if isinstance(key, str) else key,
        capture_output=True,
        timeout=30,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    ("public_url", "scheme", "host", "found"),
    [
        (None, "http", "198.18.0.1:3333", "http://198.18.0.1:3333"),
        (None, "http", "[2001:db8::1]:3333", "http://[2001:db8::1]:3333"),
        (None, "https", "fleet.example", "https://fleet.example"),
        ("https://fleet.example:8443/", "http", "10.0.0.1", "https://fleet.example:8443"),
        ("https://fleet.example", "http", "$(reboot)", "https://fleet.example"),
    ],
)
def test_address_for_scripts(public_url: str | None, scheme: str, host: str, found: str) -> None:
    assert builds.server_url(public_url, scheme, host) == found


@pytest.mark.parametrize(
    "host",
    [
        "",
        "$(reboot)",
        "a;b",
        "a b",
        "a'b",
        'a"b',
        "a`b",
        "a\nb",
        "a/b",
        "a@b",
        "a\\b",
        "a{b",
        "ä.example",
        "x" * 256,
        "a%0ab",
    ],
)
def test_a_host_that_a_shell_could_read_differently_is_refused(host: str) -> None:
    with pytest.raises(Problem) as refused:
        builds.server_url(None, "http", host)
    assert (refused.value.code, refused.value.status) == ("bad_parameter", 400)
    assert "Host header" in refused.value.detail
    assert not host or host not in refused.value.detail, "the answer may be given to a shell"


@pytest.mark.parametrize("url", ["ftp://a", "https://a/b", "https://$(x)", "//a"])
def test_a_wrong_public_url_is_named_as_the_setting(url: str) -> None:
    with pytest.raises(Problem, match="public_url"):
        builds.server_url(url, "http", "good.example")


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_scripts_name_their_server_and_leave_nothing_unrendered(name: str) -> None:
    text = scripts.script(name, "http://[2001:db8::1]:3333")
    assert f"http://[2001:db8::1]:3333/{name}" in text
    assert "{%" not in text and "{{ " not in text and "{#" not in text
    # One compound command from the second line to the last byte: the shell runs all of it or nothing.
    assert text.startswith("#!/bin/sh\n{\n") and text.endswith('\nmain "$@"\nexit\n}\n')


def test_the_helper_stands_between_single_quotes() -> None:
    assert "'" not in HELPER.read_text()


@pytest.mark.parametrize(
    "value",
    [
        "gpu-a",
        "yes",
        "null",
        "0123",
        "1e3",
        "a: b",
        "#x",
        "- a",
        'x"y',
        "back\\slash",
        "{a}",
        "*ref",
        "&a",
        "%d",
        "@x",
        "ä ö",
        "",
    ],
)
def test_texts_come_back_from_yaml_and_json_as_they_were(value: str) -> None:
    printed = helper("text", value).stdout
    assert yaml.safe_load(f"node_id: {printed}") == {"node_id": value}
    assert json.loads(printed) == value


def test_labels_come_back_from_yaml() -> None:
    printed = helper("labels", "site=b", "on=yes", "n=1=2", 'q="x"', "empty=").stdout
    assert yaml.safe_load(f"labels: {printed}")["labels"] == {
        "site": "b",
        "on": "yes",
        "n": "1=2",
        "q": '"x"',
        "empty": "",
    }


@pytest.mark.parametrize("pair", ["site", "=b", "a=\x07", ""])
def test_a_wrong_label_is_usage(pair: str) -> None:
    done = helper("labels", pair)
    assert done.returncode == 2
    assert "wanted K=V" in done.stderr


GOOD_KEYS = [
    "a%Hb%%c0123456789",
    "p$word0123456789",
    "x\"y'z0123456789",
    "back\\slash-0123",
    "#lead0123456789",
    "!~" * 32,
]


@pytest.mark.case("FC-063")
@pytest.mark.parametrize("key", GOOD_KEYS)
def test_a_key_with_special_characters_is_passed_on_unchanged(key: str, tmp_path) -> None:
    """Percent signs, quotes, backslashes and dollars in a key were changed by systemd, YAML or a shell on its way."""
    file = tmp_path / "key"
    file.write_text(key + "\n")
    assert helper("key", str(file)).stdout == key + "\n"
    assert helper("key", "-", key=key).stdout == key + "\n"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"0123456789abcdef\r\n", "carriage return"),
        (b"two words 0123456789", "a blank"),
        (b"0123456789abcdef\n\n", "a line break"),
        (b"\xef\xbb\xbf0123456789abcdef", "the byte 0xef"),
        (b"0123\x00456789", "the byte 0x0"),
        (b"x" * 5000, "more than 4096 bytes"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused_by_name_of_the_character(key: bytes, words: str) -> None:
    done = helper("key", "-", key=key)
    assert (done.returncode, done.stdout) == (3, "")
    assert words in done.stderr
    assert "0123456789" not in done.stderr


def test_a_key_file_that_is_not_there_is_usage() -> None:
    assert helper("key", "/nonexistent/key").returncode == 2


@pytest.mark.parametrize(
    ("url", "allow", "printed"),
    [
        ("http://198.18.0.1:3333/", "", "http://198.18.0.1:3333"),
        ("http://localhost:3333", "", "http://localhost:3333"),
        ("http://[::1]:3333", "", "http://[::1]:3333"),
        ("https://fleet.example", "", "https://fleet.example"),
        ("http://fleet.example", "true", "http://fleet.example"),
        ("http://fleet.example", "", None),
        ("http://203.0.113.9:3333", "", "http://203.0.113.9:3333"),  # documentation range: private, says Python
        ("http://8.8.8.8", "", None),
        ("http://0.0.0.0:3333", "", None),
        ("fleet.example:3333", "", None),
        ("ftp://10.0.0.1", "", None),
        ("http://user:pw@10.0.0.1", "", None),
        ("http://10.0.0.1/?a=b", "", None),
        ("http://10.0.0.1:port", "", None),
        ("http://[::1", "", None),
        ("http://::1:3333", "", None),
        ("::1", "", None),
        ("fe80::5678", "", None),
        ("http://[fd00::1]", "", "http://[fd00::1]"),
        ("https://host/base/", "", "https://host/base"),
        ("http://[beef]:3333", "", None),
        ("http://[::ffff:8.8.8.8]:3333", "", None),
        ("http://[::ffff:10.0.0.1]:3333", "", "http://[::ffff:10.0.0.1]:3333"),
        ("", "", None),
    ],
)
@pytest.mark.case("FC-052")
def test_addresses_that_the_key_may_be_sent_to(url: str, allow: str, printed: str | None) -> None:
    done = helper("address", url, allow)
    assert (done.returncode, done.stdout.strip()) == ((0, printed) if printed else (2, ""))
    # What the script lets through, the agent takes, and the other way round.
    if printed:
        assert parse_server_url(url, allow_plain_http=allow == "true").base == printed
    else:
        with pytest.raises(AddressError):
            parse_server_url(url, allow_plain_http=allow == "true")


@pytest.mark.parametrize(
    "line",
    [
        "proxy: http://10.0.0.1:3128",
        "proxy:   http://10.0.0.1:3128   # the site's",
        "proxy: 'http://who:it''s@10.0.0.1:3128' # x",
        'proxy: "http://who:\\u00e4#1@10.0.0.1:3128"',
        'proxy: "a # b"',
        "proxy: http://10.0.0.1:3128/#part",
        "proxy: null",
        "proxy: ~",
        "proxy:",
        "proxy: # none",
        "other: x",
        "#proxy: x",
        "hardware:\n  proxy: x",
    ],
)
def test_a_setting_is_read_as_the_agent_reads_it(line: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"labels: {{}}\n{line}\nnode_id: n\n")
    wanted = yaml.safe_load(file.read_text()).get("proxy")
    done = subprocess.run(
        [sys.executable, "-Ic", HELPER.read_text(), "setting", "proxy"],
        env={"BASE": str(file)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{wanted or ''}\n", "")


@pytest.mark.parametrize(("value", "code"), [("gpu-1", 0), ("Not An Id", 2), ("-a", 2), ("a" * 64, 2), ("a\n", 2)])
def test_a_node_id_is_looked_at_before_anything_is_changed(value: str, code: int) -> None:
    assert is_node_id(value) is (code == 0)
    assert helper("need_node_id", value).returncode == code
