"""Engine texts: the recorded ones, and those of the field case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.agent.tasks.checks import CheckFailed, checked_image
from runtime.agent.tasks.images import classify_pull_error, classify_start_error, engine_line
from runtime.protocol.reasons import Reason

RECORDED = Path(__file__).parents[4] / "shared" / "vendor-tools" / "docker"
TEXTS = sorted(path for path in RECORDED.glob("*.txt") if "docker-inspect" not in path.name)


def test_the_recorded_texts_are_there() -> None:
    assert len(TEXTS) >= 18


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_recorded_text(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())["expect"]
    verdict = classify_pull_error(path.read_text())
    assert (verdict.kind, verdict.word) == (expected["kind"], expected["reason"])


@pytest.mark.case("FC-026")
@pytest.mark.parametrize(
    ("text", "permanent", "reason"),
    [
        ("denied: requested access to the resource is denied", True, Reason.REGISTRY_AUTH_FAILED),
        ("manifest unknown: manifest unknown", True, Reason.IMAGE_NOT_FOUND),
        ("no matching manifest for linux/arm64 in the manifest list entries", True, Reason.IMAGE_NO_PLATFORM),
        ("toomanyrequests: retry-after: 42s", False, Reason.IMAGE_PULL_FAILED),
        ("dial tcp 10.0.0.1:443: i/o timeout", False, Reason.IMAGE_PULL_FAILED),
        ("write /var/lib/docker/tmp/x: no space left on device", True, Reason.DISK_FULL),
        ("something that nobody has seen before", False, Reason.IMAGE_PULL_FAILED),
    ],
)
def test_pull_error(text: str, permanent: bool, reason: Reason) -> None:
    """ "denied" and "not found" were tried for five minutes; a rate limit reached the user as "failed"."""
    verdict = classify_pull_error(text)
    assert (verdict.permanent, verdict.reason) == (permanent, reason)


def test_a_stated_wait_is_read() -> None:
    assert classify_pull_error("toomanyrequests: retry-after: 42s").wait_s == 42
    assert classify_pull_error("toomanyrequests: retry-after: 1500 ms").wait_s == 1.5
    assert classify_pull_error("toomanyrequests: slow down").wait_s is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('OCI runtime create failed: exec: "/no": stat /no: no such file or directory', Reason.START_FAILED),
        ("OCI runtime create failed: ... permission denied", Reason.START_FAILED),
        ("Bind for 0.0.0.0:3000 failed: port is already allocated", Reason.PORT_IN_USE),
        ('Conflict. The container name "/task-a" is already in use by container "9"', Reason.NAME_CONFLICT),
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', Reason.GPU_UNAVAILABLE),
        ("exec user process caused: exec format error", Reason.IMAGE_NO_PLATFORM),
        ("context deadline exceeded", Reason.START_FAILED),
    ],
)
def test_start_error(text: str, reason: Reason) -> None:
    assert classify_start_error(text).reason is reason


def test_the_engines_line_is_kept_without_its_prefix() -> None:
    assert engine_line("docker: Error response from daemon: no such thing.\nSee 'docker run --help'.\n") == (
        "no such thing. See 'docker run --help'."
    )
    assert len(engine_line("x" * 5000)) == 1000


@pytest.mark.parametrize(
    ("image", "part"), [("Ubuntu:latest", "Ubuntu"), ("app:", "tag ''"), ("app@sha256:abc", "sha256:abc")]
)
def test_a_wrong_reference_is_refused_before_any_call(image: str, part: str) -> None:
    with pytest.raises(CheckFailed) as caught:
        checked_image(image)
    assert caught.value.reason is Reason.IMAGE_INVALID
    assert part in caught.value.text
