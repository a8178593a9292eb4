"""How settings are merged, checked and shown, on a dataclass that has one of each kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

import pytest

from runtime.protocol.constraints import Items, Text, Within
from runtime.protocol.settings import MASK, SECRET, SettingsError, effective, load


@dataclass(frozen=True)
class Inner:
    detect: Annotated[str, Text(pattern="first|all")] = "first"
    tools: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    url: Optional[str] = None
    key: Optional[str] = field(default=None, metadata=SECRET, repr=False)
    names: Annotated[list[str], Items(0, 2)] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    beats: Annotated[int, Within(1, 10)] = 3
    wait_s: Annotated[float, Within(0.5)] = 5
    public: bool = False
    hardware: Inner = field(default_factory=Inner)


def faults(**arguments: Any) -> dict[str, tuple[str, str]]:
    with pytest.raises(SettingsError) as caught:
        load(Sample, **arguments)
    return {fault.path: (fault.found, fault.wanted) for fault in caught.value.faults}


def test_nothing_given_is_all_defaults() -> None:
    loaded = load(Sample)
    assert loaded.settings == Sample()
    assert set(loaded.origins.values()) == {"default"}
    assert list(loaded.origins) == [
        *("url", "key", "names", "labels", "beats", "wait_s", "public"),
        "hardware.detect",
        "hardware.tools",
    ]


def test_environment_over_file_and_command_line_over_both() -> None:
    loaded = load(
        Sample,
        document={"beats": 4, "url": "file", "wait_s": 7, "hardware": {"detect": "all"}},
        document_name="/etc/x.yaml",
        environ={"HETEROFLEET_BEATS": "5", "HETEROFLEET_URL": "variable", "PATH": "/bin", "HETEROFLEET_OTHER": "x"},
        overrides={"beats": 6, "public": None},
    )
    assert (loaded.settings.beats, loaded.settings.url, loaded.settings.wait_s) == (6, "variable", 7.0)
    assert loaded.settings.hardware.detect == "all"
    assert loaded.origins == {
        "url": "HETEROFLEET_URL",
        "key": "default",
        "names": "default",
        "labels": "default",
        "beats": "command line",
        "wait_s": "/etc/x.yaml",
        "public": "default",
        "hardware.detect": "/etc/x.yaml",
        "hardware.tools": "default",
    }


def test_nested_names_lists_and_maps_in_the_environment() -> None:
    loaded = load(
        Sample,
        environ={
            "HETEROFLEET_HARDWARE__DETECT": "all",
            "HETEROFLEET_HARDWARE__TOOLS": '{"nvidia-smi": "/opt/x"}',
            "HETEROFLEET_NAMES": '["a", "b"]',
            "HETEROFLEET_LABELS": "{}",
            "HETEROFLEET_PUBLIC": "yes",
            "HETEROFLEET_WAIT_S": "0.5",
            "HETEROFLEET_URL": "",
        },
    )
    assert loaded.settings == Sample(
        names=["a", "b"], wait_s=0.5, public=True, hardware=Inner("all", {"nvidia-smi": "/opt/x"})
    )
    assert loaded.origins["hardware.tools"] == "HETEROFLEET_HARDWARE__TOOLS"


@pytest.mark.parametrize(
    ("variable", "text", "path", "wanted"),
    [
        ("HETEROFLEET_NAMES", "a,b", "names", "a list of text"),
        ("HETEROFLEET_NAMES", '{"a": 1}', "names", "a list of text"),
        ("HETEROFLEET_NAMES", "[1]", "names", "a list of text"),
        ("HETEROFLEET_NAMES", '["a","b","c"]', "names", "at most 2 items"),
        ("HETEROFLEET_LABELS", "[]", "labels", "a map of names to text"),
        ("HETEROFLEET_LABELS", '{"a": 1}', "labels", "a map of names to text"),
        ("HETEROFLEET_BEATS", "many", "beats", "a whole number"),
        ("HETEROFLEET_BEATS", "2.5", "beats", "a whole number"),
        ("HETEROFLEET_BEATS", "0", "beats", "at least 1"),
        ("HETEROFLEET_BEATS", "11", "beats", "at most 10"),
        ("HETEROFLEET_WAIT_S", "0.1", "wait_s", "at least 0.5"),
        ("HETEROFLEET_WAIT_S", "nan", "wait_s", "a number"),
        ("HETEROFLEET_WAIT_S", "inf", "wait_s", "a number"),
        ("HETEROFLEET_PUBLIC", "maybe", "public", "true or false"),
        ("HETEROFLEET_HARDWARE__DETECT", "some", "hardware.detect", "first or all"),
    ],
)
def test_a_variable_that_does_not_fit_is_refused_by_name(variable: str, text: str, path: str, wanted: str) -> None:
    found = faults(environ={variable: text})
    assert list(found) == [path]
    assert found[path][1] == wanted
    assert variable in found[path][0]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(True, "a whole number"), ("3", "a whole number"), (None, "a whole number"), ([], "a whole number")],
)
def test_a_file_is_typed(value: Any, wanted: str) -> None:
    assert faults(document={"beats": value})["beats"][1] == wanted


def test_all_faults_are_told_at_once() -> None:
    found = faults(
        document={"beats": 0, "hardware": {"detect": "none", "detectt": 1}, "urll": "x"},
        environ={"HETEROFLEET_PUBLIC": "perhaps"},
        overrides={"wait_s": "soon"},
    )
    assert set(found) == {"beats", "hardware.detect", "hardware.detectt", "urll", "public", "wait_s"}


def test_an_unknown_setting_names_the_nearest() -> None:
    found = faults(document={"beat": 3, "hardware": {"tool": {}}, "zzz": 1}, document_name="a.yaml")
    assert found["beat"] == ("an unknown setting in a.yaml", "a known one; the nearest is beats")
    assert found["hardware.tool"][1] == "a known one; the nearest is hardware.tools"
    assert found["zzz"][1].startswith("a known one: url, key")


@pytest.mark.parametrize("document", [[], "text", 3])
def test_a_file_that_is_no_mapping(document: Any) -> None:
    assert faults(document=document, document_name="a.yaml")["a.yaml"][1] == "a mapping of settings"


def test_a_group_that_is_no_mapping() -> None:
    assert faults(document={"hardware": "all"})["hardware"][1] == "a map"


@pytest.mark.parametrize("written_for", ["1.2.0", "2", "1.1.1"])
def test_a_file_for_a_newer_release_only_warns(written_for: str) -> None:
    loaded = load(Sample, document={"beat": 3, "beats": 4, "written_for": written_for}, version="1.1.0")
    assert loaded.settings.beats == 4
    (warning,) = loaded.warnings
    assert warning.startswith("beat: unknown setting")
    assert "did you mean beats?" in warning


@pytest.mark.parametrize("written_for", ["1.1.0", "1.0.9", 7, None])
def test_a_file_for_this_or_an_older_release_is_refused(written_for: Any) -> None:
    assert "beat" in faults(document={"beat": 3, "written_for": written_for}, version="1.1.0")


@pytest.mark.parametrize(
    ("written_for", "newer"), [("0.0.1", False), ("0.1.0", False), ("99.0.0", True), ("dev", False)]
)
def test_in_a_checkout_a_file_is_newer_only_than_the_release_that_it_is_the_source_of(
    written_for: str, newer: bool
) -> None:
    """What happened: every number was newer than "dev", so unknown settings of a file of any release only warned."""
    document = {"beat": 3, "written_for": written_for}
    if newer:
        assert load(Sample, document=document, version="dev").warnings
    else:
        assert "beat" in faults(document=document, version="dev")


def test_where_nobody_knows_the_release_an_unknown_setting_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.protocol.build.DISTRIBUTION", "no-such-distribution-here")
    assert "beat" in faults(document={"beat": 3, "written_for": "99"}, version="dev")


def test_a_wrong_value_is_wrong_in_a_newer_file_too() -> None:
    assert "beats" in faults(document={"beats": "x", "written_for": "99"}, version="1.0.0")


def test_secrets_are_neither_shown_nor_told() -> None:
    loaded = load(Sample, document={"key": "correct horse battery"})
    shown = {path: (value, origin) for path, value, origin in effective(loaded)}
    assert shown["key"] == (MASK, "file")
    assert shown["hardware.detect"] == ("first", "default")
    assert "correct horse" not in repr(loaded)
    assert effective(load(Sample))[1] == ("key", None, "default")
    found = faults(document={"key": ["correct horse"]})
    assert "correct horse" not in str(found)


def test_long_values_are_cut_in_messages() -> None:
    assert len(faults(document={"beats": "x" * 5000})["beats"][0]) < 120


def test_a_mistyped_variable_is_told_and_others_are_left_alone() -> None:
    loaded = load(
        Sample, environ={"HETEROFLEET_LABLES": "{}", "HETEROFLEET_HARDWARE__DETCT": "all", "HETEROFLEET_TOKEN": "t"}
    )
    assert loaded.settings == Sample()
    assert loaded.warnings == [
        "HETEROFLEET_HARDWARE__DETCT: no setting has this variable; did you mean HETEROFLEET_HARDWARE__DETECT?",
        "HETEROFLEET_LABLES: no setting has this variable; did you mean HETEROFLEET_LABELS?",
    ]
