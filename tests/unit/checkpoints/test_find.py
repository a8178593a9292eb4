"""Which of several is the newest, what is no candidate, and what a look may cost."""

from __future__ import annotations

import ast
import errno
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent import checkpoints
from runtime.agent.checkpoints import FRAMEWORKS, Budget, Look, find, find_newest
from runtime.agent.checkpoints.folder import Folder
from runtime.agent.checkpoints.names import first_gap, said, step_of, unfinished
from runtime.agent.checkpoints.verdict import Incomplete
from runtime.server.services.tasks.check import FRAMEWORKS as SERVERS
from tests.unit.checkpoints import layouts as made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "ck"
    root.mkdir()
    return root


def look(root: Path, framework: str = "auto", **more: Any) -> Look:
    return find_newest(str(root), framework=framework, seen_as="/ck", **more)


def found(root: Path, framework: str = "auto", **more: Any) -> Optional[str]:
    seen = look(root, framework, **more).found
    return seen.path if seen is not None else None


def reasons(seen: Look) -> dict[str, str]:
    return {one.path: one.reason for one in seen.rejected}


def test_server_and_agent_know_the_same_frameworks() -> None:
    assert set(FRAMEWORKS) == set(SERVERS)


def test_the_package_stands_alone() -> None:
    sources = sorted(Path(checkpoints.__file__).parent.glob("*.py"))
    named: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom):
                named.add(node.module or "")
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
    own = checkpoints.__name__
    others = {name for name in named if name != own and not name.startswith(f"{own}.")}
    assert others and {name for name in others if name.partition(".")[0] not in sys.stdlib_module_names} == set()
    assert "pickle" not in others


@pytest.mark.case("FC-035")
@pytest.mark.parametrize("framework", ["auto", "transformers"])
def test_a_job_killed_while_it_saved_goes_on_from_the_save_before(root: Path, framework: str) -> None:
    """Killed in the middle of a save: resuming took the highest folder each time, and failed each time."""
    made.transformers(root, 1000)
    made.transformers(root, 2000)
    (root / "checkpoint-2000" / "trainer_state.json").unlink()
    (root / "checkpoint-3000").mkdir()
    seen = look(root, framework)
    assert seen.found is not None and (seen.found.path, seen.found.step) == ("/ck/checkpoint-1000", 1000)
    assert reasons(seen) == {
        "/ck/checkpoint-3000": "is empty",
        "/ck/checkpoint-2000": "trainer_state.json is missing",
    }
    (root / "checkpoint-1000").rename(root.parent / "gone")
    seen = look(root, framework)
    assert seen.found is None and len(seen.rejected) == 2


STEPS = ("step_9", "step_10", "step_9000", "step_10000", "step_best", "step_", "step_-5")


def as_transformers(root: Path, name: str) -> None:
    made.transformers(root, step_of(name) or 99_999, name=name)


def as_pytorch(root: Path, name: str) -> None:
    made.distributed(root / name)


def as_marked(root: Path, name: str) -> None:
    made.marked(root, step_of(name) or 99_999, name=name)


@pytest.mark.case("FC-036")
@pytest.mark.parametrize("build", [as_transformers, as_pytorch, as_marked])
def test_steps_are_compared_as_numbers(root: Path, build: Callable[[Path, str], None]) -> None:
    """As texts step_9000 comes after step_10000."""
    for name in STEPS:
        build(root, name)
    assert found(root) == "/ck/step_10000"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500), ("step_9", 9), ("global_step100", 100), ("iter_0000100", 100), ("500", 500),
        ("epoch=3-step=100", 100), ("epoch=3-step=100.ckpt", 100), ("model.ckpt-100", 100), ("iter0007", 7),
        ("v2-step_5", 5), ("step_0", 0), ("step_-5", None), ("step_best", None), ("step_", None), ("", None),
        ("step_1e5", None), ("step_0x10", None), ("step_1.5", None), ("step_1_000", None), ("-5", None),
        ("step_" + "9" * 19, None), ("step_\u0661\u0660", None), ("step_\uff11", None), ("2026-11-30", None),
        ("step_5 ", None), ("step_5\n", None), ("last", None), ("checkpoint-best", None), ("step_+5", None),
    ],
)  # fmt: skip
def test_a_step_is_the_plain_number_at_the_end(name: str, step: Optional[int]) -> None:
    assert step_of(name) == step


@pytest.mark.parametrize(
    ("name", "is_it"),
    [
        ("tmp-checkpoint-500", True), ("checkpoint-500.tmp", True), (".checkpoint-500", True), ("step_5-tmp", True),
        ("step_100.orbax-checkpoint-tmp-3", True), ("TMP_step_5", True), ("step_5.partial", True),
        ("checkpoint-500", False), ("template-500", False), ("attempt-3", False),
    ],
)  # fmt: skip
def test_names_of_saves_under_way(name: str, is_it: bool) -> None:
    assert unfinished(name) is is_it


@pytest.mark.parametrize(
    ("ranks", "gap"),
    [
        ([(0,)], None), ([(1,)], (0,)), ([(0,), (2,)], (1,)), ([(0, 0), (0, 1), (1, 0)], (1, 1)),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], None), ([(999_999, 999_999)], (0, 0)),
        ([(0, 0), (999_999, 999_999)], (0, 1)),
    ],
)  # fmt: skip
def test_gaps_in_ranks(ranks: list[tuple[int, ...]], gap: Optional[tuple[int, ...]]) -> None:
    assert first_gap(ranks) == gap


def test_of_a_pointer_only_a_checkpoint_s_name_is_repeated() -> None:
    assert said("global_step300") == "global_step300"
    assert said("hunter2 is my password 7") == "something"
    assert said("x" * 100 + "7") == "something"


def test_of_several_frameworks_in_one_folder_the_highest_step_wins(root: Path) -> None:
    made.deepspeed(root, 300)
    made.latest(root, "global_step300")
    made.transformers(root, 200)
    assert found(root) == "/ck/global_step300"
    made.distributed(root / "step-400")
    assert found(root) == "/ck/step-400"
    made.marked(root, 500)
    assert found(root) == "/ck/step_500"
    made.megatron(root, 600)
    made.tracker(root, "600")
    assert found(root) == "/ck/iter_0000600"
    made.state(root, made.tensorflow(root, 700))
    assert found(root) == "/ck/model.ckpt-700"
    for framework, path in (("deepspeed", "global_step300"), ("transformers", "checkpoint-200"), ("marker", "step_500"),
                            ("pytorch", "step-400"), ("megatron", "iter_0000600")):  # fmt: skip
        assert found(root, framework) == f"/ck/{path}", framework


def test_a_folder_that_a_pointer_is_about_is_judged_by_the_pointer(root: Path) -> None:
    """Whole as a distributed checkpoint, but not all ranks have said so yet."""
    made.megatron_distributed(root, 100)
    made.megatron_distributed(root, 200)
    made.tracker(root, "100")
    assert found(root) == "/ck/iter_0000100"


def test_another_program_s_latest_stands_in_nobody_s_way(root: Path) -> None:
    made.distributed(root / "step-400")
    made.latest(root, "step-400")
    assert look(root).rejected == ()
    (root / "latest").unlink()
    (root / "latest").symlink_to("step-400")
    assert found(root) == "/ck/step-400"


def test_a_marker_that_does_not_hold_is_evidence_against_its_folder(root: Path) -> None:
    made.transformers(root, 100)
    folder = made.transformers(root, 200)
    entry = {"step": 200, "name": "x", "files": [{"path": "optimizer.pt", "size": 1}]}
    made.put(folder / "HETEROFLEET_COMPLETE.json", json.dumps(entry))
    assert found(root) == "/ck/checkpoint-100"


def test_a_marker_counts_steps_where_folders_count_epochs(root: Path) -> None:
    made.marked(root, 3000, name="epoch_3")
    made.marked(root, 2000, name="epoch_20")
    assert look(root).found == look(root, "marker").found
    assert found(root) == "/ck/epoch_3"


@pytest.mark.parametrize(("name", "path"), [("model-7.bin", "/ck/model-7.bin"), ("any words", "/ck"), ("../x", "/ck")])
def test_a_marker_beside_the_checkpoints_speaks_for_what_it_names(root: Path, name: str, path: str) -> None:
    made.put(root / "model-7.bin", made.TENSOR)
    entry = {"step": 7, "name": name, "files": [{"path": "model-7.bin", "size": 64}]}
    made.put(root / "HETEROFLEET_COMPLETE.json", json.dumps(entry))
    assert found(root) == path


def test_the_place_may_be_a_checkpoint_itself(root: Path) -> None:
    made.transformers(root, 500)
    made.distributed(root / "step-70")
    assert find_newest(str(root), "checkpoint-500").found is not None
    seen = find_newest(str(root), "step-70", seen_as="/in/step-70").found
    assert seen is not None and (seen.path, seen.step) == ("/in/step-70", 70)
    seen = find_newest(str(root), "step-70", seen_as="/in/last").found
    assert seen is not None and (seen.path, seen.step) == ("/in/last", None)
    assert find_newest(str(root), "checkpoint-500", seen_as="/in/output") == Look()


def test_nothing_there_yet_is_no_refusal(root: Path) -> None:
    assert look(root) == Look() == look(root / "not" / "there")
    assert find_newest(str(root), "not/there/either") == Look()


@pytest.mark.parametrize("inside", ["..", "a/../..", "../ck", "a\0b"])
def test_a_path_only_goes_down(root: Path, inside: str) -> None:
    (root / "a").mkdir()
    assert "only goes down" in find_newest(str(root), inside).rejected[0].reason


def test_no_link_leads_to_the_place(root: Path) -> None:
    made.transformers(root, 500)
    (root.parent / "alias").symlink_to(root)
    assert "links are not followed" in find_newest(str(root.parent), "alias").rejected[0].reason
    handle = os.open(root.parent, os.O_PATH)
    try:
        assert find_newest(handle, "ck").found is not None
        assert find_newest(handle, "alias").found is None
    finally:
        os.close(handle)


def test_a_file_is_no_place(root: Path) -> None:
    made.put(root / "file", "x")
    assert "is no folder" in find_newest(str(root), "file").rejected[0].reason


def test_an_unknown_framework_is_an_error_of_the_caller(root: Path) -> None:
    with pytest.raises(ValueError, match="magic"):
        look(root, "magic")


def test_what_the_program_cannot_see_there_is_no_candidate(root: Path) -> None:
    made.transformers(root, 100)
    made.transformers(root, 200)
    seen = look(root, hidden={"checkpoint-200"})
    assert seen.found is not None and seen.found.step == 100
    assert "another volume" in reasons(seen)["/ck/checkpoint-200"]
    made.deepspeed(root, 300)
    made.latest(root, "global_step300")
    assert found(root, hidden={"global_step300"}) == "/ck/checkpoint-200"


def test_names_in_other_encodings_are_passed_over(root: Path) -> None:
    made.transformers(root, 100)
    for name in (b"checkpoint-\xff200", b"\xfe\xff", b"step\xe4_300", "step\u202e_400".encode(), b"step\n_500"):
        (root / os.fsdecode(name)).mkdir()
    seen = look(root)
    assert seen.found is not None and seen.found.step == 100
    for one in seen.rejected:
        assert one.path.isprintable() and one.path.encode()


def test_special_files_are_never_opened(root: Path) -> None:
    """A pipe without a writer would hold the reader for ever, and a device may do anything when it is opened."""
    names = ("latest", "checkpoint", "latest_checkpointed_iteration.txt", "HETEROFLEET_COMPLETE.json", ".metadata",
             "trainer_state.json")  # fmt: skip
    for name in names:
        os.mkfifo(root / name)
    folder = made.transformers(root, 200)
    (folder / "optimizer.pt").unlink()
    os.mkfifo(folder / "optimizer.pt")
    folder = made.transformers(root, 300)
    (folder / "trainer_state.json").unlink()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "trainer_state.json"))
    folder = made.marked(root, 400)
    (folder / "weights.bin").unlink()
    os.mknod(folder / "weights.bin", 0o20600, os.makedev(1, 5))
    made.transformers(root, 100)
    seen = look(root)
    assert seen.found is not None and seen.found.step == 100
    told = reasons(seen)
    assert told["/ck/checkpoint-200"] == "optimizer.pt is a pipe, not a file"
    assert told["/ck/checkpoint-300"] == "trainer_state.json is a socket, not a file"
    assert told["/ck/step_400"] == "weights.bin is a device, not a file"
    for framework in FRAMEWORKS:
        look(root, framework)


def test_what_may_not_be_read_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads all, but not over NFS with root_squash: the errors are made here."""
    made.transformers(root, 100)
    made.transformers(root, 200)
    refuse(monkeypatch, "checkpoint-200", errno.EACCES)
    seen = look(root)
    assert seen.found is not None and seen.found.step == 100
    assert reasons(seen)["/ck/checkpoint-200"] == "checkpoint-200 cannot be read (Permission denied)"
    refuse(monkeypatch, ".", errno.EACCES)
    handle = os.open(root, os.O_PATH)
    try:
        assert "permission denied" in find_newest(handle).rejected[0].reason
    finally:
        os.close(handle)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOTCONN, errno.EMFILE, errno.ETIMEDOUT])
def test_a_file_system_that_does_not_answer_says_nothing_of_any_checkpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """ "None found" would begin from scratch, and write over what is there."""
    made.transformers(root, 100)
    refuse(monkeypatch, "checkpoint-100", number)
    with pytest.raises(OSError) as caught:
        look(root)
    assert caught.value.errno == number


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    really = os.open

    def refused(path: Any, *words: Any, **more: Any) -> int:
        if path == name:
            raise OSError(number, os.strerror(number), path)
        return really(path, *words, **more)

    monkeypatch.setattr(os, "open", refused)


def test_a_save_that_goes_on_meanwhile_is_not_taken_for_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.transformers(root, 100)
    made.transformers(root, 200)
    growing = root / "checkpoint-200" / "optimizer.pt"
    settle = Folder.settle

    def grow(self: Folder) -> None:
        with growing.open("ab") as file:
            file.write(b"more")
        settle(self)

    monkeypatch.setattr(Folder, "settle", grow)
    seen = look(root)
    assert seen.found is not None and seen.found.step == 100
    assert "changes while it is looked at" in reasons(seen)["/ck/checkpoint-200"]


@pytest.mark.parametrize(
    ("build", "file"),
    [
        (lambda root: (made.megatron(root, 200), made.tracker(root, "200")),
         "iter_0000200/mp_rank_01/model_optim_rng.pt"),
        (lambda root: (made.deepspeed(root, 200), made.latest(root, "global_step200")),
         "global_step200/mp_rank_00_model_states.pt"),
        (lambda root: made.state(root, made.tensorflow(root, 200)), "model.ckpt-200.data-00001-of-00002"),
        (lambda root: made.distributed(root / "step-200"), "step-200/__1_0.distcp"),
        (lambda root: made.marked(root, 200), "step_200/optim/rank0.bin"),
    ],
)  # fmt: skip
def test_a_file_that_grows_is_not_whole_in_any_layout(
    root: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[Path], object], file: str
) -> None:
    build(root)
    assert found(root) is not None
    settle = Folder.settle

    def grow(self: Folder) -> None:
        with (root / file).open("ab") as growing:
            growing.write(b"more")
        settle(self)

    monkeypatch.setattr(Folder, "settle", grow)
    monkeypatch.setattr(find, "TRIES", 1)
    seen = look(root)
    assert seen.found is None
    assert any("changes while it is looked at" in one.reason for one in seen.rejected)


def test_of_very_many_the_highest_are_looked_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (9, 10, 100):
        made.transformers(root, step)
    monkeypatch.setattr(find, "CANDIDATES", 1)
    assert found(root) == "/ck/checkpoint-100"


def test_a_change_that_is_over_is_looked_at_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.deepspeed(root, 100)
    made.deepspeed(root, 200)
    made.latest(root, "global_step100")
    settle, saves = Folder.settle, [root / "latest"]

    def save(self: Folder) -> None:
        if saves:
            saves.pop().write_text("global_step200")
        settle(self)

    monkeypatch.setattr(Folder, "settle", save)
    assert found(root) == "/ck/global_step200"


def test_a_file_is_what_it_was_when_it_was_first_seen(root: Path) -> None:
    made.put(root / "file", "x")
    with Folder.at(str(root), "", Budget()) as folder:
        folder.size("file")
        made.put(root / "file", "xx")
        folder.size("file")
        with pytest.raises(Incomplete, match="changes while"):
            folder.settle()


def test_a_link_that_takes_a_file_s_place_is_not_opened(root: Path) -> None:
    made.put(root / "file", "x")
    with Folder.at(str(root), "", Budget()) as folder:
        folder.size("file")
        (root / "file").rename(root.parent / "away")
        (root / "file").symlink_to(root.parent / "away")
        with pytest.raises(Incomplete, match="links are not followed"), folder.opened("file"):
            pass


def test_work_is_bounded(root: Path) -> None:
    for step in (100, 200):
        made.transformers(root, step)
    (root / "logs").mkdir()
    for number in range(300):
        (root / f"events.{number}").touch()
    seen = look(root, budget=Budget(entries=200))
    assert seen.found is None and reasons(seen) == {"/ck": "the look was ended: more than 200 names would have to be "
                                                    "looked at"}  # fmt: skip
    assert "s" in reasons(look(root, budget=Budget(seconds=-1)))["/ck"]
    assert found(root) == "/ck/checkpoint-200"


def test_what_was_proven_before_the_time_was_up_counts(root: Path) -> None:
    made.deepspeed(root, 100)
    made.latest(root, "global_step100")
    for step in range(200, 600):
        (root / f"run-{step}").mkdir()
        (root / f"run-{step}" / "x").touch()
    seen = look(root, budget=Budget(entries=1500))
    assert seen.found is not None and seen.found.step == 100
    assert "the look was ended" in reasons(seen)["/ck"]


def test_large_files_are_not_read(root: Path) -> None:
    made.transformers(root, 100)
    folder = made.transformers(root, 200)
    os.truncate(folder / "trainer_state.json", 1 << 40)
    assert "more than are read" in reasons(look(root))["/ck/checkpoint-200"]
    assert found(root) == "/ck/checkpoint-100"


def test_deep_folders_are_no_trouble(root: Path) -> None:
    made.marked(root, 100, files={"/".join("abcdefghijklmno") + "/x": b"1"})
    made.marked(root, 200, files={"/".join("abcdefghijklmnopqrst") + "/x": b"1"})
    seen = look(root)
    assert seen.found is not None and seen.found.step == 100


def test_long_names_are_shortened_in_sentences_only(root: Path) -> None:
    long = "/".join(letter * 90 for letter in "abc")
    made.marked(root, 100, files={f"{long}/x": b"1", f"{long}/y": b"2"})
    assert found(root) == "/ck/step_100"
    made.marked(root, 200, files={f"{long}/x": b"1"})
    (root / "step_200" / long / "x").unlink()
    assert len(reasons(look(root))["/ck/step_200"]) < 150


def test_many_ranks_need_few_handles(root: Path) -> None:
    made.megatron(root, 100, tuple(f"{number:02d}" for number in range(200)), optimizer=False)
    made.tracker(root, "100")
    before = len(list(Path("/proc/self/fd").iterdir()))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, limits[1]))
    try:
        assert found(root) == "/ck/iter_0000100"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
