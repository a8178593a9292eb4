"""What a task may say of its volumes, program, variables and names: refused by the server when it is sent, and by
the node as well, which does not take the server's word for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.checks import CheckFailed, check
from runtime.protocol.names import ImageReferenceError, is_task_id, parse_image_reference
from runtime.protocol.paths import LONGEST_NAME, LONGEST_PATH, path_fault, target_fault, target_name
from runtime.protocol.problems import Problem
from runtime.protocol.program import PROGRAM_BYTES, WORD_BYTES
from runtime.protocol.reasons import Reason
from runtime.protocol.tasks import VOLUMES_LIMIT, TaskSpec, Volume
from runtime.server.services.tasks.check import check as server_check
from runtime.server.validation import parse

SECRET = "hunter2-very-secret"
GOOD: dict[str, Any] = {"name": "a", "image": "app:1"}
VOLUME = {"host": "/data/x", "container": "/x"}


def server_faults(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Path and words of each fault that the server finds."""
    try:
        spec = parse(TaskSpec, json.dumps({**GOOD, **body}).encode(), code="invalid_task", forbid_unknown=True)
    except Problem as problem:
        assert problem.status in (400, 422)
        assert SECRET not in json.dumps(problem.document(None))
        found = problem.members.get("errors", [{"path": problem.code, "found": problem.detail, "wanted": ""}])
        return [(fault["path"], f"{fault['found']}; {fault['wanted']}") for fault in found]
    return [(fault.path, f"{fault.found}; {fault.wanted}") for fault in server_check(spec, (), None).faults]


def node_fault(spec: TaskSpec) -> tuple[Reason, str] | None:
    try:
        check(spec, (), GpuSnapshot(), AgentSettings(allow_host_network=False))
    except CheckFailed as failed:
        assert SECRET not in failed.text
        return failed.reason, failed.text
    return None


PROGRAM = [
    ({"env": {"A": f"{SECRET}\0"}}, "env.A", Reason.ENV_INVALID),
    ({"env": {"A": SECRET + "x" * WORD_BYTES}}, "env.A", Reason.ENV_INVALID),
    ({"env": {f"A{n}": "x" * 100_000 for n in range(11)}}, "env", Reason.ENV_INVALID),
    ({"env": {f"A{n}": "" for n in range(90_000)}}, "env", Reason.ENV_INVALID),
    ({"command": ["x" * (WORD_BYTES + 1)]}, "command.0", Reason.PROFILE_REJECTED),
    ({"command": ["x" * 1000] * 1100}, "command", Reason.PROFILE_REJECTED),
    ({"entrypoint": ["a", "b\0c"]}, "entrypoint.1", Reason.PROFILE_REJECTED),
    ({"user": "root\n"}, "user", Reason.PROFILE_REJECTED),
    ({"user": "-u"}, "user", Reason.PROFILE_REJECTED),
    ({"user": "a:b:c"}, "user", Reason.PROFILE_REJECTED),
    ({"user": "1000:"}, "user", Reason.PROFILE_REJECTED),
    ({"user": "2147483648"}, "user", Reason.PROFILE_REJECTED),
    ({"user": "\u0661"}, "user", Reason.PROFILE_REJECTED),
    ({"workdir": "work"}, "workdir", Reason.PROFILE_REJECTED),
    ({"workdir": "/a/../b"}, "workdir", Reason.PROFILE_REJECTED),
    ({"workdir": "/a\nb"}, "workdir", Reason.PROFILE_REJECTED),
    ({"resume_from_checkpoint": "a\0"}, "resume_from_checkpoint", Reason.PROFILE_REJECTED),
]  # fmt: skip


@pytest.mark.parametrize(("body", "path", "reason"), PROGRAM, ids=lambda value: str(value)[:40])
def test_a_program_that_nothing_could_start(body: dict[str, Any], path: str, reason: Reason) -> None:
    assert path in {found for found, _ in server_faults(body)}
    found = node_fault(TaskSpec(**{**GOOD, **body}))
    assert found is not None
    assert found[0] is reason
    assert path in found[1]


@pytest.mark.parametrize(
    "body",
    [
        {"env": {"A": "line\nline", "B": "a=b=c", "C": "", "_d": "\u20ac", "E": "x" * (WORD_BYTES - 2)}},
        {"env": {"LD_PRELOAD": "/mine.so", "HETEROFLEET_API_KEY": "the task's own"}},
        {"command": ["", "--", "-x", "$(id)", "a b\nc"]},
        {"entrypoint": []},
        {"user": "1000:1000"},
        {"user": "www-data"},
        {"workdir": "/a//b/./c"},
        {"resume_from_checkpoint": "latest"},
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_program_that_may_look_odd(body: dict[str, Any]) -> None:
    assert server_faults(body) == []
    assert node_fault(TaskSpec(**{**GOOD, **body})) is None


PATHS: list[tuple[str, str]] = [
    ("", "is empty"), ("a", "is relative"), ("~/a", "is relative"), ("$HOME", "is relative"), (" /a", "is relative"),
    ("/a\n", "control"), ("/a\r/b", "control"), ("/\0", "control"), ("/\x7f", "control"), ("/\x85", "control"),
    ("/\u2028", "control"), ("/\ud800", "UTF-8"), ("/" + "a" * (LONGEST_NAME + 1), "longer than 255"),
    ("/aa" * 2000, "longer than 4095"), ("/" + "\u20ac" * 86, "longer than 255"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "words"), PATHS, ids=lambda value: ascii(value)[:30])
def test_a_path_that_names_no_place(path: str, words: str) -> None:
    fault = path_fault(path)
    assert fault is not None
    assert words in fault
    assert words in (target_fault(path) or "")
    for member in ("host", "container"):
        volume = {**VOLUME, member: path}
        if path:
            assert server_faults({"volumes": [volume]}), "the server says so when the task is sent"
        found = node_fault(TaskSpec(**GOOD, volumes=[Volume(**volume)]))
        assert found is not None
        assert found[0] is Reason.VOLUME_REJECTED
        assert member == "host" or "in the container" in found[1] or words in found[1]


@pytest.mark.parametrize(
    "path", ["/", "//", "/./", "/a/..", "/proc", "/proc/1", "/./proc", "/sys/x", "/dev", "/dev/nvidia0", "/dev/shm/x"]
)
def test_places_in_a_container_that_are_no_volumes(path: str) -> None:
    assert target_fault(path) is not None
    assert [found for found, _ in server_faults({"volumes": [{**VOLUME, "container": path}]})] == [
        "volumes.0.container"
    ]
    found = node_fault(TaskSpec(**GOOD, volumes=[Volume("/data/x", path)]))
    assert found is not None
    assert found[0] is Reason.VOLUME_REJECTED


@pytest.mark.parametrize(
    "path", ["/a" * 2047, "/" + "a" * LONGEST_NAME, "/%2e%2e", "/a b", "/a:b,c", "/\u202e", "/..."]
)
def test_names_are_taken_as_they_are(path: str) -> None:
    assert len(path) <= LONGEST_PATH
    assert path_fault(path) is None
    assert target_fault(path) is None


def test_one_spelling_for_one_place() -> None:
    assert {target_name(path) for path in ("/x", "//x", "/x/", "/./x//.")} == {"/x"}
    twice = [VOLUME, {**VOLUME, "container": "/x/."}]
    assert [found for found, _ in server_faults({"volumes": twice})] == ["volumes.1.container"]


def test_volumes_are_counted_on_both_ends() -> None:
    volumes = [{"host": f"/data/{n}", "container": f"/v{n}"} for n in range(VOLUMES_LIMIT + 1)]
    assert [found for found, _ in server_faults({"volumes": volumes})] == ["volumes"]
    assert server_faults({"volumes": volumes[:-1]}) == []
    found = node_fault(TaskSpec(**GOOD, volumes=[Volume(**volume) for volume in volumes]))
    assert found == (Reason.VOLUME_REJECTED, "257 volumes; at most 256 are possible")


@pytest.mark.case("FC-023")
@pytest.mark.parametrize(
    ("image", "part"),
    [
        ("Ubuntu:latest", "component 'Ubuntu'"), ("app:", "tag ''"), ("app@sha256:abc", "digest"),
        ("-it", "component '-it'"),
        ("--privileged", "component"), ("--volume=/:/host", "component"), ("app:-it", "tag '-it'"),
        ("", "component ''"),
        ("a b", "component"), ("a\nb", "component"), ("../a", "registry"), ("a/../b", "component"), ("/a", "component"),
        ("a//b", "component"), ("http://reg/a", "registry"), ("reg:port/a", "registry"), ("user@reg/a", "digest"),
        ("a:1:2", "tag '1:2'"), ("app:t" + "x" * 128, "tag"), ("a/" * 200 + "a", "longer than 255"),
        ("a;id", "component"),
        ("$(id)", "component"), ("a\0", "component"), ("\uff41pp", "component"), ("app@sha256:" + "0" * 63, "digest"),
    ],
    ids=lambda value: ascii(value)[:30],
)  # fmt: skip
def test_images_that_are_no_references(image: str, part: str) -> None:
    """Read wrongly, a reference became another image, or an option of a command line."""
    with pytest.raises(ImageReferenceError, match=part):
        parse_image_reference(image)
    assert server_faults({"image": image})
    if image:
        found = node_fault(TaskSpec("a", image=image))
        assert found is not None
        assert found[0] is Reason.IMAGE_INVALID


@pytest.mark.case("FC-023")
@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("reg.local:5000/team/app", ("reg.local:5000", "team/app", "latest", None)),
        ("reg.local:5000/team/app:1.0", ("reg.local:5000", "team/app", "1.0", None)),
        ("localhost/app", ("localhost", "app", "latest", None)),
        ("app", ("docker.io", "library/app", "latest", None)),
        ("app@sha256:" + "0" * 64, ("docker.io", "library/app", None, "sha256:" + "0" * 64)),
        ("reg:5000/a/b:1@sha256:" + "f" * 64, ("reg:5000", "a/b", "1", "sha256:" + "f" * 64)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_images_in_their_parts(image: str, parts: tuple[str, ...]) -> None:
    found = parse_image_reference(image)
    assert (found.registry, found.repository, found.tag, found.digest) == parts


@pytest.mark.parametrize(
    "task_id",
    [
        "",
        "-a",
        "a-",
        "A",
        "a_b",
        "a.b",
        "a/b",
        "../a",
        "a b",
        "a\n",
        "\n",
        "a\0",
        "a" * 64,
        "\u0430",
        "a%2fb",
        "--rm",
        ".",
    ],
    ids=ascii,
)
def test_ids_that_are_none(task_id: str) -> None:
    assert not is_task_id(task_id)
    for member in ("id", "node_id"):
        assert server_faults({member: task_id})


ODD: list[Callable[[], dict[str, Any]]] = [
    lambda: {"ports": [{"container": 0}]},
    lambda: {"ports": [{"container": 65536}]},
    lambda: {"ports": [{"container": 80, "host": -1}]},
    lambda: {"ports": [{"container": 80, "protocol": "udp"}]},
    lambda: {"network": "container:other"},
    lambda: {"network": "none"},
    lambda: {"shm_mib": 0},
    lambda: {"memory_mib": 5},
    lambda: {"cpus": 0},
    lambda: {"privileged": True},
    lambda: {"devices": ["/dev/mem"]},
    lambda: {"cap_add": ["SYS_ADMIN"]},
    lambda: {"security_opt": ["seccomp=unconfined"]},
    lambda: {"pid": "host"},
    lambda: {"volumes": [{**VOLUME, "propagation": "shared"}]},
    lambda: {"volumes": ["/data/x:/x"]},
    lambda: {"labels": {"heterofleet.claim\n": "x"}},
]


@pytest.mark.parametrize("body", ODD, ids=lambda make: str(make())[:40])
def test_what_no_task_can_ask_for(body: Callable[[], dict[str, Any]]) -> None:
    assert server_faults(body())


def test_a_body_and_its_parts_have_limits() -> None:
    assert PROGRAM_BYTES < 8 << 20, "the limit of a body is not the first that is met"
    assert [found for found, _ in server_faults({"command": [""] * 4097})] == ["command"]
    assert [found for found, _ in server_faults({"name": "x" * 201})] == ["name"]
