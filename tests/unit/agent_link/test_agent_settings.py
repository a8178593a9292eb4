"""Every fault of the settings with its path; where the key comes from."""

from __future__ import annotations

import pytest

from runtime.agent.settings import load_settings
from runtime.agent.settings_found import hardware_of, state_dir_of
from runtime.protocol.settings import SettingsError, effective

GOOD = "server_url: http://127.0.0.1:3333\napi_key: 0123456789abcdef\n"


def load(tmp_path, text: str = GOOD, environ=None, **overrides):
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return load_settings(path, environ or {}, overrides)


def faults(tmp_path, text: str, environ=None, **overrides) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, environ, **overrides)
    return {fault.path: f"{fault.found} | {fault.wanted}" for fault in caught.value.faults}


def test_defaults_are_the_contract_s(tmp_path) -> None:
    settings = load(tmp_path).settings
    assert settings.state_dir == "/var/lib/heterofleet/agent"
    assert settings.volumes_allow == ["/data", "/mnt", "/srv"] and settings.file_roots == ["/data"]
    assert 2 <= settings.workers <= 16 and settings.max_tasks == 64
    assert (settings.poll_interval_s, settings.safety_pull_s, settings.reconcile_interval_s) == (5, 60, 60)
    assert (settings.hardware.detect, settings.hardware.virtual_cards) == ("first", 1)
    assert (settings.allow_host_network, settings.allow_ipc_host, settings.process_driver) == (True, True, False)


@pytest.mark.parametrize(
    ("line", "path", "words"),
    [
        ("server_url: 127.0.0.1:3333", "server_url", "with its scheme, such as http://127.0.0.1:3333"),
        ("server_url: ftp://127.0.0.1", "server_url", "http or https"),
        ("server_url: http://user:secret@10.0.0.1", "server_url", "without them"),
        ("server_url: http://user:secret@10.0.0.1:99999", "server_url", "without them"),
        ("server_url: http://8.8.8.8:3333", "server_url", "allow_plain_http: true"),
        ("server_url: http://control-plane.example:3333", "server_url", "allow_plain_http: true"),
        ("server_url: http://10.0.0.1:99999", "server_url", "a URL such as"),
        ("server_url: http://10.0.0.1/?a=b", "server_url", "without '?'"),
        ("server_url: 7", "server_url", "text"),
        ("api_key: ''", "api_key", "the system key"),
        ("api_key: 'a b'", "api_key", "printable ASCII"),
        ("node_id: GPU_7", "node_id", "a-z, 0-9"),
        ("node_id: -a", "node_id", "a-z, 0-9"),
        ("mgmt_addr: 10.0.0.7 10.0.0.8", "mgmt_addr", "one host name or address"),
        ("mgmt_addr: ''", "mgmt_addr", "one host name or address"),
        ("state_dir: relative", "state_dir", "an absolute path"),
        ("ca_file: /nowhere/ca.pem", "ca_file", "CA certificates"),
        ("proxy: proxy:3128", "proxy", "with its scheme"),
        ("proxy: http://user:secret@proxy:3128/?a", "proxy", "without '?'"),
        ("proxy: user:secret@proxy", "proxy", "with its scheme"),
        ("volumes_allow: [data]", "volumes_allow.0", "an absolute path"),
        ("volumes_allow: /data", "volumes_allow", "a list"),
        ("max_tasks: many", "max_tasks", "a whole number"),
        ("max_tasks: 0", "max_tasks", "at least 1"),
        ("report_backoff_max_s: 0.5", "report_backoff_max_s", "report_backoff_first_s (1)"),
        ("hardware: {detect: some}", "hardware.detect", "first or all"),
        ("hardware: {virtual_card: 1}", "hardware.virtual_card", "hardware.virtual_cards"),
        ("hardware: {tools: {nvidia-smi: smi}}", "hardware.tools.nvidia-smi", "an absolute path"),
        ("fabrics: [{hcas: [mlx5_0]}]", "fabrics.0", "name and hcas"),
        ("fabrics: [{name: a, hcas: mlx5_0}]", "fabrics.0.hcas", "a list of adapter names"),
        ("labels: {a: 1}", "labels", "a map"),
        ("heartbeat: 5", "heartbeat", "a known one"),
        ("sever_url: x", "sever_url", "the nearest is server_url"),
    ],
)
def test_a_fault_names_its_path_and_what_is_wanted(tmp_path, line: str, path: str, words: str) -> None:
    key = line.split(":")[0]
    rest = "".join(row + "\n" for row in GOOD.splitlines() if not row.startswith(key + ":"))
    found = faults(tmp_path, rest + line + "\n")
    assert list(found) == [path]
    assert words in found[path]
    assert "secret@" not in found[path]


def test_every_fault_is_told_at_once(tmp_path) -> None:
    assert set(faults(tmp_path, "node_id: A\nworkers: no\n")) == {"workers"}
    assert set(faults(tmp_path, "node_id: A\nstate_dir: x\n")) == {"server_url", "api_key_file", "node_id", "state_dir"}


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("a: 1\nb: [1\nc: 2\n", ":3:2", "valid YAML"),
        ("a: 1\n\tb: 2\n", ":2:1", "valid YAML"),
        (GOOD + "api_key: other-key-0123456789\n", ":3:1", "given twice"),
        ("- a\n", "", "a mapping"),
    ],
)
def test_broken_yaml_names_the_line(tmp_path, text: str, where: str, words: str) -> None:
    found = faults(tmp_path, text)
    (path,) = found
    assert path == f"{tmp_path / 'agent.yaml'}{where}" and words in found[path]
    assert "other-key" not in str(found)


def test_a_named_file_must_exist_the_default_one_may_be_absent(tmp_path, monkeypatch) -> None:
    with pytest.raises(SettingsError, match="no file"):
        load_settings(tmp_path / "none.yaml", {}, {})
    monkeypatch.setattr("runtime.agent.settings.DEFAULT_PATH", tmp_path / "none.yaml")
    variables = {"HETEROFLEET_SERVER_URL": "http://127.0.0.1:1", "HETEROFLEET_API_KEY": "0123456789abcdef"}
    assert load_settings(None, variables, {}).settings.server_url == "http://127.0.0.1:1"


def test_command_line_over_environment_over_file(tmp_path) -> None:
    environ = {"HETEROFLEET_NODE_ID": "b", "HETEROFLEET_HARDWARE__DETECT": "all", "HETEROFLEET_LABELS": '{"rack": "7"}'}
    loaded = load(tmp_path, GOOD + "node_id: a\n", environ, node_id="c")
    assert loaded.settings.node_id == "c" and loaded.origins["node_id"] == "command line"
    assert loaded.settings.hardware.detect == "all" and loaded.settings.labels == {"rack": "7"}
    assert loaded.origins["labels"] == "HETEROFLEET_LABELS"


URL = "server_url: http://127.0.0.1:3333\n"


def with_key_file(tmp_path, data: bytes, mode: int = 0o600) -> str:
    key = tmp_path / "key"
    key.write_bytes(data)
    key.chmod(mode)
    return f"{URL}api_key_file: {key}\n"


@pytest.mark.parametrize("data", [b"0123456789abcdef", b"0123456789abcdef\n"])
def test_the_key_is_read_from_its_file(tmp_path, data: bytes) -> None:
    loaded = load(tmp_path, with_key_file(tmp_path, data))
    assert loaded.settings.api_key == "0123456789abcdef" and loaded.warnings == []
    shown = {path: value for path, value, _ in effective(loaded)}
    assert shown["api_key"] == "********"


def test_a_proxy_keeps_its_login_and_shows_it_to_nobody(tmp_path) -> None:
    loaded = load(tmp_path, GOOD + "proxy: http://user:secretword@proxy:3128\n")
    assert loaded.settings.proxy == "http://user:secretword@proxy:3128"
    assert "secretword" not in str(effective(loaded)) and "secretword" not in repr(loaded.settings)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty key"),
        (b"\n", "an empty key"),
        (b"0123456789abcdef\r\n", "Unix line ends"),
        (b"0123456789abcdef\n\n", "no blanks"),
        (b" 0123456789abcdef", "no blanks"),
        (b"\xef\xbb\xbf0123456789abcdef", "printable ASCII"),
        (b"x" * 5000, "the key alone"),
    ],
)
def test_a_key_file_that_cannot_be_used(tmp_path, data: bytes, words: str) -> None:
    found = faults(tmp_path, with_key_file(tmp_path, data))
    assert list(found) == ["api_key_file"] and words in found["api_key_file"]
    assert "0123456789abcdef" not in str(found)


def test_a_missing_key_file_and_an_open_one(tmp_path) -> None:
    assert "No such file" in faults(tmp_path, f"{URL}api_key_file: {tmp_path}/none\n")["api_key_file"]
    (warning,) = load(tmp_path, with_key_file(tmp_path, b"0123456789abcdef", 0o644)).warnings
    assert "mode 0644" in warning


def test_key_and_key_file_together(tmp_path) -> None:
    both = with_key_file(tmp_path, b"0123456789abcdef") + "api_key: fedcba9876543210\n"
    assert "one of the two" in faults(tmp_path, both)["api_key_file"]
    over = load(tmp_path, with_key_file(tmp_path, b"0123456789abcdef"), {"HETEROFLEET_API_KEY": "fedcba9876543210"})
    assert over.settings.api_key == "fedcba9876543210"


@pytest.mark.case("FC-052")
@pytest.mark.parametrize(
    ("url", "base_or_words"),
    [
        ("http://[::1]:3333", "http://[::1]:3333"),
        ("http://[fd00::1]", "http://[fd00::1]"),
        ("https://host/base/", "https://host/base"),
        ("http://::1:3333", "!http://[::1]:3333"),
        ("::1", "!http://[::1]:3333"),
        ("fe80::5678", "!http://[fe80::5678]:3333"),
    ],
)
def test_ipv6_without_brackets_is_refused_with_the_bracketed_form(tmp_path, url: str, base_or_words: str) -> None:
    """What happened: http://::1:3333 cannot be parsed, and guessing the port broke fe80::5678."""
    from runtime.protocol.address import parse_server_url

    text = f"server_url: '{url}'\napi_key: 0123456789abcdef\n"
    if base_or_words.startswith("!"):
        assert base_or_words[1:] in faults(tmp_path, text)["server_url"]
    else:
        assert parse_server_url(load(tmp_path, text).settings.server_url or "").base == base_or_words


def test_the_state_folder_is_known_also_when_the_settings_are_wrong(tmp_path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("state_dir: /somewhere\nnode_id: BAD\n")
    assert str(state_dir_of(path, {})) == "/somewhere"
    assert str(state_dir_of(path, {"HETEROFLEET_STATE_DIR": "/else"})) == "/else"
    path.write_text("{")
    assert str(state_dir_of(path, {})) == "/var/lib/heterofleet/agent"


def test_hardware_s_settings_are_known_without_a_key_a_server_or_a_file(tmp_path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("hardware: {detect: all, virtual_cards: 3, tools: {npu-smi: /x/npu-smi}}\n")
    found = hardware_of(path, {})
    assert (found.hardware.detect, found.hardware.virtual_cards, found.hardware.tools, found.unread) == (
        *("all", 3, {"npu-smi": "/x/npu-smi"}),
        None,
    )
    assert hardware_of(path, {"HETEROFLEET_HARDWARE__DETECT": "first"}).hardware.detect == "first"
    for text, words in (("{", "valid YAML"), ("hardware: {detect: some}", "first or all"), ("x_y: 1", "x_y")):
        path.write_text(text)
        found = hardware_of(path, {})
        assert found.hardware.detect == "first" and words in (found.unread or "")
    absent = hardware_of(tmp_path / "none.yaml", {})
    assert f"no file {tmp_path}/none.yaml" in (absent.unread or "")


def test_a_tool_that_nobody_asks_is_a_fault_that_names_the_nearest(tmp_path) -> None:
    found = faults(tmp_path, GOOD + "hardware: {tools: {npu-smii: /x/npu-smii}}\n")
    assert (
        "npu-smi, " in found["hardware.tools.npu-smii"] and "the nearest is npu-smi" in found["hardware.tools.npu-smii"]
    )
    assert "nvidia-smi, " in faults(tmp_path, GOOD + "hardware: {tools: {zzz: /x}}\n")["hardware.tools.zzz"]
    newer = load(tmp_path, GOOD + "written_for: 999.0.0\nhardware: {tools: {tpu-smi: /x}}\n")
    assert any("hardware.tools.tpu-smi" in warning for warning in newer.warnings)
