"""What a broken YAML file is refused with: the place and the kind of fault, and not a word of the file."""

from __future__ import annotations

import pytest
import yaml

from runtime.protocol.yaml_faults import YamlFault, yaml_fault


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('a: 1\ntoken: "secretword', ":2:19", "unexpected end of stream"),
        ("token: secretword: b", ":1:18", "mapping values are not allowed"),
        ("token: *secretword", ":1:8", "undefined alias"),
        ("token: !secretword x", ":1:8", "constructor for the tag"),
        ("token: &secretword1 a\nb: [secretword", ":2:15", "but got '<stream end>'"),
        ("token: secretword\x00", "", "special characters are not allowed"),
    ],
)
def test_nothing_of_the_file_is_told(text: str, place: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError) as refused:
        yaml.safe_load(text)
    assert "secretword" in str(refused.value) or not place
    found = yaml_fault(refused.value)
    assert found.place == place and words in found.words
    assert "secretword" not in str(found)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(UnicodeDecodeError) as refused:
        b"key: \xff".decode()
    assert yaml_fault(refused.value) == YamlFault("invalid start byte")
