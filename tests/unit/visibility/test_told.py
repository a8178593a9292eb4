"""What a vendor's tool tells of a card on its own node, and what is made of it later: containers that wake, volumes,
containers of others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.content import card_members
from runtime.agent.drivers.docker_answers import facts_of
from runtime.agent.drivers.driver import LABEL_CARDS, LABEL_GIVEN
from runtime.agent.hardware import looks
from runtime.agent.hardware.detector import Cards, CollectorError, Detection
from runtime.agent.hardware.inventory import GpuSnapshot, Inventory
from runtime.agent.hardware.tools import Output, ToolRunner
from runtime.agent.hardware.vendors.ascend import ASCEND, logic_id, phy_id
from runtime.agent.hardware.vendors.plain import PlainDetector
from runtime.agent.hardware.visibility import Card
from runtime.agent.tasks.checks import CheckFailed, check_driver_mounts
from runtime.agent.tasks.giving import by_place, moved
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.protocol.hardware import Gpu
from runtime.protocol.reasons import Reason
from runtime.protocol.tasks import AssignedGpu, TaskSpec, Volume

TABLE = """\
| npu-smi 98.0.1                   Version: 98.0.1                                               |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 64    Ascend988           | OK            | 90.5        40                0    / 0             |
| 0     4                   | 0000:4A:00.0  | 0           0    / 0          101  / 32000         |
| 65    Ascend988           | OK            | 91.5        41                0    / 0             |
| 0     6                   | 0000:4B:00.0  | 0           0    / 0          102  / 32000         |
"""
MAP = """\
NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
64                             0                              0                              Ascend988
65                             0                              1                              Ascend988
"""


class Tool(ToolRunner):
    def run(self, name: str, command: Sequence[str], **options: Any) -> Output:
        return Output(MAP if command[-1] == "-m" else TABLE, "", 0)


class Vendor:
    """Found from the start unless ``late``; ``fails`` while its tool does."""

    evidence = loss_detection = "none"

    def __init__(self, vendor: str, late: bool = False) -> None:
        self.vendor, self.late, self.fails = vendor, late, False
        self.numbers = [0, 1]

    def detect(self) -> Detection:
        return Detection(not self.late, not self.late, "")

    def collect(self, known: list[Gpu]) -> Cards:
        if self.fails:
            raise CollectorError("it did not answer in 10 s")
        gpus = [Gpu(f"{self.vendor}-{n}", self.vendor, n) for n in self.numbers]
        return Cards(gpus, tells={gpu.uuid: {"phy_id": gpu.index} for gpu in gpus})

    def close(self) -> None:
        pass


def of(*vendors: Vendor, mode: str = "first", state: Path | None = None) -> Inventory:
    return Inventory(list(vendors), ToolRunner(), node_id="n", state_dir=state, mode=mode)  # type: ignore[arg-type]


def test_ascend_tells_both_numbers_of_a_chip(tmp_path: Path) -> None:
    detector = PlainDetector(ASCEND, Tool(), {"npu-smi": "/fake"}, sysfs=tmp_path, root=tmp_path)
    cards = detector.collect([])
    told = [Card(gpu, cards.tells[gpu.uuid]) for gpu in cards.gpus]
    assert [(phy_id(card), logic_id(card)) for card in told] == [(4, 0), (6, 1)]
    assert [card.tells["npu_id"] for card in told] == [64, 65]


def test_what_was_told_stays_while_the_tool_fails_and_goes_with_its_card() -> None:
    vendor = Vendor("ascend")
    here = of(vendor)
    here.round()
    told = here.snapshot().tells
    assert told == {"ascend-0": {"phy_id": 0}, "ascend-1": {"phy_id": 1}}
    assert "tells" not in card_members(here.snapshot()), "it stays on the node"
    vendor.fails = True
    here.round()
    assert here.snapshot().tells == told and here.snapshot().collector_error
    vendor.fails, vendor.numbers = False, [1]
    here.round()
    assert here.snapshot().tells == {"ascend-1": {"phy_id": 1}}


def test_all_vendors_are_looked_for_where_one_is_known_already(tmp_path: Path) -> None:
    """An operator who turned it on later saw no further card."""
    one, two, late = Vendor("ascend"), Vendor("hygon"), Vendor("kunlun", late=True)
    of(one, two, late, state=tmp_path).round()
    first, every = (of(one, two, late, mode=mode, state=tmp_path) for mode in ("first", "all"))
    for here in (first, every):
        here.round()
    assert {gpu.vendor for gpu in first.snapshot().gpus or ()} == {"ascend"}
    assert {gpu.vendor for gpu in every.snapshot().gpus or ()} == {"ascend", "hygon"}
    late.late, one.late = False, True
    for _ in range(looks.LOOK_AGAIN_EVERY):
        every.round()
    assert {gpu.vendor for gpu in every.snapshot().gpus or ()} == {"ascend", "hygon", "kunlun"}


RECORD = ClaimRecord(
    Key("u", 1), "a", "cp", "t", Stage.SLEEPING, TaskSpec("a"), gpus=(AssignedGpu("x", vendor="ascend"),)
)  # fmt: skip


def parts(number: int, runtimes: tuple[str, ...] = ("ascend",)) -> Any:
    gpu = Gpu("x", "ascend", 0)
    snapshot = GpuSnapshot(gpus=[gpu], tells={"x": {"phy_id": number}})
    engine = SimpleNamespace(facts=SimpleNamespace(runtimes=runtimes))
    return SimpleNamespace(snapshot=lambda: snapshot, engine_of=lambda held: engine)


def facts(given: str | None) -> Any:
    return SimpleNamespace(labels={} if given is None else {LABEL_GIVEN: given})


HELD: Any = SimpleNamespace(record=RECORD)


@pytest.mark.parametrize(
    ("given", "number", "words"),
    [
        (None, 4, None),
        ("ASCEND_VISIBLE_DEVICES=4", 4, None),
        ("ASCEND_VISIBLE_DEVICES=5", 4, "made with ASCEND_VISIBLE_DEVICES=5, and its cards are .*=4 on this node now"),
    ],
)
def test_a_container_is_not_started_with_another_card(given: str | None, number: int, words: str | None) -> None:
    said = moved(parts(number), HELD, facts(given))
    assert said is None if words is None else re.search(words, str(said))


def test_a_container_made_by_device_files_is_judged_by_those() -> None:
    """Be there a runtime since; on this machine such a file is missing."""
    with pytest.raises(CheckFailed, match="/dev/davinci4 is missing") as refused:
        moved(parts(4), HELD, facts("/dev/davinci4"))
    assert refused.value.reason is Reason.GPU_UNAVAILABLE


@pytest.mark.parametrize(("vendor", "wanted"), [("ascend", True), (None, True), ("nvidia", False), ("virtual", False)])
def test_only_cards_without_lasting_names_are_looked_at_again(vendor: str | None, wanted: bool) -> None:
    record = ClaimRecord(Key("u", 1), "a", "cp", "t", Stage.CREATED, TaskSpec("a"), gpus=(AssignedGpu("x", 0, vendor),))
    assert by_place(record) is wanted


@pytest.mark.parametrize(
    ("target", "refused"),
    [
        ("/usr/local/bin/npu-smi", True),
        ("/usr/local//bin/", True),
        ("/usr", True),
        ("/opt/hyhal/lib/x", True),
        ("/usr/local/binary", False),
        ("/opt/hyhal2", False),
        ("/data", False),
    ],
)
def test_a_volume_is_not_put_in_the_way_of_a_driver(target: str, refused: bool) -> None:
    spec = TaskSpec("t", volumes=[Volume("/data/x", "/other"), Volume("/data/x", target)])
    shown = ("/usr/local/bin/npu-smi", "/opt/hyhal")
    if not refused:
        check_driver_mounts(spec, shown)
        return
    with pytest.raises(CheckFailed, match="the driver of the task's cards is shown at") as caught:
        check_driver_mounts(spec, shown)
    assert caught.value.reason is Reason.VOLUME_REJECTED


def test_cards_of_a_container_of_ours_are_known_by_its_label() -> None:
    document = {
        "Id": "1" * 64,
        "State": {"Status": "running", "Running": True},
        "Config": {"Labels": {LABEL_CARDS: "0000:1A/4,b"}, "Env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }
    assert facts_of(document).cards == ("0000:1A/4", "b")
