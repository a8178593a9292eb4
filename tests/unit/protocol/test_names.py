"""Names with a grammar, as tables."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.protocol.names import (
    ImageReferenceError,
    is_env_name,
    is_node_id,
    is_task_id,
    new_task_id,
    node_id_from_hostname,
    parse_image_reference,
)

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.case("FC-023")
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("reg.local:5000/team/app", ("reg.local:5000", "team/app", "latest", None)),
        ("reg.local:5000/team/app:1.0", ("reg.local:5000", "team/app", "1.0", None)),
        ("localhost/app", ("localhost", "app", "latest", None)),
        ("app", ("docker.io", "library/app", "latest", None)),
        (f"app@{DIGEST}", ("docker.io", "library/app", None, DIGEST)),
        (f"reg:5000/a/b:1@{DIGEST}", ("reg:5000", "a/b", "1", DIGEST)),
        ("Ubuntu:latest", "repository component 'Ubuntu'"),
        ("app:", "tag ''"),
        ("app@sha256:abc", "digest 'sha256:abc'"),
    ],
)
def test_a_registry_port_is_not_a_tag_and_a_digest_stays_whole(text: str, parts: tuple[str | None, ...] | str) -> None:
    """Splitting at the first or last colon made image "host" with tag "5000/team/app", and tore digests apart.

    Upper case, an empty tag and a short digest reached the engine and failed there, late and unclear: they are
    refused here, and the refusal names the part at fault.
    """
    if isinstance(parts, str):
        with pytest.raises(ImageReferenceError, match=re.escape(parts)):
            parse_image_reference(text)
        return
    reference = parse_image_reference(text)
    assert (reference.registry, reference.repository, reference.tag, reference.digest) == parts
    assert reference.pull_name == f"{parts[0]}/{parts[1]}"


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag"),
    [
        ("[::1]:5000/a/b:2", "[::1]:5000", "a/b", "2"),
        ("10.0.0.5:5000/lmsysorg/sglang:latest", "10.0.0.5:5000", "lmsysorg/sglang", "latest"),
        ("team/app", "docker.io", "team/app", "latest"),
        ("docker.io/app", "docker.io", "library/app", "latest"),
        ("Reg.Example.com/app", "Reg.Example.com", "app", "latest"),
        ("a/b__c/d--e.f:V1_.-x", "docker.io", "a/b__c/d--e.f", "V1_.-x"),
    ],
)
def test_other_forms_of_references(text: str, registry: str, repository: str, tag: str) -> None:
    reference = parse_image_reference(text)
    assert (reference.registry, reference.repository, reference.tag) == (registry, repository, tag)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        "-a",
        "a b",
        "a\n",
        "reg:port/a",
        "reg.local:5000/",
        "a:b:c",
        "a@b@c",
        f"a@{DIGEST}x",
        "a@sha512:abc",
        "a:-tag",
        "a:" + "t" * 129,
        "r.io/" + "a/" * 130 + "b",
        "réf/app",
        "https://reg/app",
    ],
)
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(ImageReferenceError):
        parse_image_reference(text)


@pytest.mark.parametrize("text", ["a", "0", "gpu-a", "a" * 63, "0-0", "node-1f2e3d", "a--b"])
def test_node_ids(text: str) -> None:
    assert is_node_id(text)
    assert is_task_id(text)


@pytest.mark.parametrize(
    "text",
    ["", "-a", "a-", "A", "a_b", "a.b", "a" * 64, "a\n", "é", "a b", "\u0661", "ａ", "a/b", "a\x00"],
)
def test_what_is_no_node_id(text: str) -> None:
    assert not is_node_id(text)


@pytest.mark.parametrize(
    ("hostname", "node_id"),
    [
        ("gpu-a", "gpu-a"),
        ("GPU-A.example.com", "gpu-a-example-com"),
        ("__a__b__", "a-b"),
        ("a" * 62 + ".b", "a" * 62),  # the cut would end in "-"
        ("x" * 80, "x" * 63),
        ("Büro 3", "b-ro-3"),
    ],
)
def test_the_node_id_of_a_hostname(hostname: str, node_id: str) -> None:
    assert node_id_from_hostname(hostname) == node_id


@pytest.mark.parametrize("hostname", ["", "---", "名前", "..."])
def test_a_hostname_that_leaves_nothing(hostname: str) -> None:
    first, second = node_id_from_hostname(hostname), node_id_from_hostname(hostname)
    assert re.fullmatch(r"node-[0-9a-f]{6}", first)
    assert first != second


@given(st.text(max_size=100))
def test_every_hostname_gives_a_node_id(hostname: str) -> None:
    assert is_node_id(node_id_from_hostname(hostname))


@pytest.mark.parametrize("text", ["A", "_", "a_1", "PATH", "__X"])
def test_environment_names(text: str) -> None:
    assert is_env_name(text)


@pytest.mark.parametrize("text", ["", "1A", "A-B", "A=B", "A B", "É", "A\n", "A.B", "\u0661"])
def test_what_is_no_environment_name(text: str) -> None:
    assert not is_env_name(text)


def test_made_task_ids_are_task_ids_unique_and_in_order_of_time() -> None:
    ids = [new_task_id() for _ in range(500)]
    assert len(set(ids)) == 500
    assert all(is_task_id(made) and len(made) == 26 for made in ids)
    times = [made[:10] for made in ids]  # 48 bits of milliseconds are the first ten characters
    assert times == sorted(times)
    assert times[0][0] == "0"
