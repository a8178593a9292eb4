"""Every recorded default table of a vendor's tool, printed by a tool on disk, through ``inventory``: the cards that
the scheduler would see are those of the sample, and what it does not tell is null.

The tool knows no other question, as an old one does; where there are samples of the same machine it answers those too.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.hardware.detectors import DETECTORS
from runtime.agent.hardware.nvidia_by_smi import ADDED, QUERY
from runtime.agent.hardware.pci import normal_bus_id
from runtime.agent.hardware.report import as_table, take_inventory
from tests.integration.inventory.fake_tools import REFUSES, SILENT, answering, process, script
from tests.samples import FOLDER, Sample, samples

VENDORS = {"musa": "mthreads"}
"""Vendor -> its folder of samples, where that has another name."""

GROUPS = [VENDORS.get(vendor, vendor) for vendor, _ in DETECTORS]
TABLES = [sample for sample in samples(*GROUPS) if sample.plain]
BY_NAME = {sample.name: sample for sample in samples(*GROUPS)}
MEASURED = ("memory_used_mib", "utilization_pct", "temperature_c", "power_w")

RICHER = {
    "nvidia-smi__noargs__h100__mig_four_devices_busy": ("nvidia-smi__L__h100__mig_four_devices",),
    "nvidia-smi__noargs__h200__mig_two_ci_share_one_gi": ("nvidia-smi__L__h200__mig_compute_slices_1c_2c",),
    "npu-smi__info__310p3-duo__npu_2944": (
        "npu-smi__info-t-board__310p3-duo__serial_and_chip_fault",
        "npu-smi__info-t-common__310p3-duo__npu_2944_power_on_mcu",
        "npu-smi__info-t-power__310p3-duo__npu_2944",
        "npu-smi__info-t-usages__310p3-duo__npu_2944",
    ),
}
"""Table -> other outputs of the same machine."""

WIDE = BY_NAME["nvidia-smi__query-gpu-all-fields__h100__mig_busy_wide_csv"]
"""All fields that a driver knows, of the machine with the first of those tables."""


def name_of(sample: Sample) -> str:
    return f"{sample.group}-{sample.name}"


def fake(sample: Sample, folder: Path, more: Mapping[Sequence[str], str], otherwise: str) -> Path:
    answers = {**more, sample.arguments: sample.text}
    return answering(folder / sample.tool, answers, otherwise=otherwise, status=sample.expect.get("exit_code", 0))


def seen(sample: Sample, folder: Path, more: Mapping[Sequence[str], str] = {}, otherwise: str = REFUSES) -> Any:
    """The report, in this process."""
    return take_inventory({sample.tool: str(fake(sample, folder, more, otherwise))}, nvml=False)


def is_right(sample: Sample, found: Any) -> None:
    """The report says what the sample says, no more and no less."""
    expect = sample.expect
    real = [gpu for gpu in found["gpus"] if gpu["vendor"] != "virtual"]
    vendor = next(vendor for vendor, _ in DETECTORS if VENDORS.get(vendor, vendor) == sample.group)
    assert {gpu["vendor"] for gpu in real} <= {vendor}
    whole = [gpu for gpu in real if gpu["parent_uuid"] is None]
    assert [gpu["index"] for gpu in whole] == [card["index"] for card in expect["cards"]]
    assert len({gpu["uuid"] for gpu in real}) == len(real)
    for card, gpu in zip(expect["cards"], whole):
        is_the_card(card, gpu)
    assert counted(real) == {one["class"]: one["count"] for one in found["classes"] if real}
    are_the_slices(expect.get("mig_devices", []), real, whole)
    are_the_errors(sample, found, whole)
    if expect.get("processes") is not None:
        told = [(one["pid"], one["memory_mib"]) for one in expect["processes"]]
        assert sorted((one["pid"], one["memory_mib"]) for one in found["gpu_holders"]) == sorted(told)
    table = as_table(found)
    assert "None" not in table and all(gpu["uuid"] in table for gpu in real)
    assert all(one["reason"] in table for one in found["gpu_collect_failures"])


def is_the_card(card: dict[str, Any], gpu: dict[str, Any]) -> None:
    bad = card["health"] == "bad"
    assert (gpu["model"], gpu["memory_total_mib"]) == (card["name"], card["memory_total_mib"])
    assert gpu["pci_bus_id"] == normal_bus_id(card["bus_id"])
    assert card["uuid"] in (None, gpu["uuid"])
    # What a condemned card measures may be left out: it is not to be relied on.
    assert all(gpu[key] == card[key] or (bad and gpu[key] is None) for key in MEASURED), (card, gpu)
    assert gpu["health"]["ok"] is not bad
    if card["health"] in ("bad", "warning"):
        assert (card.get("health_raw") or "") in " ".join(gpu["health"]["problems"]) != ""
    # A name that is cut, or none at all, makes no class.
    assert (gpu["class"] is None) == (card["name"] is None or card["name"].endswith("..."))
    assert gpu["profile"] is None


def counted(gpus: list[dict[str, Any]]) -> dict[str, int]:
    """What can be given out, by class."""
    cut = {gpu["parent_uuid"] for gpu in gpus}
    classes = [gpu["class"] for gpu in gpus if gpu["class"] is not None and gpu["uuid"] not in cut]
    return {name: classes.count(name) for name in classes}


def are_the_slices(expected: list[dict[str, Any]], gpus: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    parents = {gpu["index"]: gpu["uuid"] for gpu in whole}
    slices = [gpu for gpu in gpus if gpu["parent_uuid"] is not None]
    assert [(one["parent_uuid"], one["memory_total_mib"], one["memory_used_mib"]) for one in slices] == [
        (parents[one["gpu"]], one["memory_total_mib"], one["memory_used_mib"]) for one in expected
    ]


def are_the_errors(sample: Sample, found: Any, whole: list[dict[str, Any]]) -> None:
    error, kind, blamed = (sample.expect.get(key) for key in ("error", "error_kind", "blamed"))
    condemned = {gpu["index"] for gpu in whole if not gpu["health"]["ok"]}
    failed = [(one["index"], one["uuid"]) for one in found["gpu_collect_failures"]]
    if blamed is not None:
        (failure,) = found["gpu_collect_failures"]
        assert error in failure["reason"] and found["error"] is None
        assert failure["index"] == blamed.get("index") and failure["uuid"] == normal_bus_id(blamed.get("bus_id"))
        return
    assert {index for index, _ in failed} == condemned and len(failed) == len(condemned)
    if error is None:
        assert found["error"] is None and found["source"] == sample.tool
    elif kind == "no_devices":
        assert found["error"] is None and any("knows no card" in one["why"] for one in found["detection"])
    else:
        words = f"{sample.tool} has failed: {error}"
        if kind == "tool_missing":  # a script, whose own words are shown whole
            words = f" and failed: {sample.text.strip()}"
            assert found["error"].startswith(f"{sample.tool} is there (/")
        assert found["error"].endswith(words)
        assert (found["source"], found["gpus"]) == ("unavailable", [])
    assert any("no accelerator" in sentence for sentence in found["cannot"]) == (not whole)


def test_all_default_tables_of_the_folder_are_here() -> None:
    """A table is what a tool prints that is asked nothing, or for its ``info``: by its name and by its command."""
    files = [path for path in FOLDER.glob("*/*.txt") if path.parent.name in GROUPS]
    assert {path.parent.name for path in files} == set(GROUPS)
    named = {path.stem for path in files if path.name.split("__")[1] in ("noargs", "info")}
    asked = {sample.name for sample in BY_NAME.values() if sample.arguments in ((), ("info",))}
    assert {sample.name for sample in TABLES} == named == asked and len(TABLES) == len(named)


@pytest.mark.parametrize("sample", TABLES, ids=name_of)
def test_the_plain_table_alone_tells_the_cards(sample: Sample, tmp_path: Path) -> None:
    is_right(sample, seen(sample, tmp_path))


@pytest.mark.parametrize("group", GROUPS)
def test_so_it_does_beside_questions_that_get_no_word_or_the_table_once_more(group: str, tmp_path: Path) -> None:
    """The longest and the shortest of the vendor's, which is an error where there is one."""
    tables = sorted((sample for sample in TABLES if sample.group == group), key=lambda sample: len(sample.text))
    for folder, sample in ((tmp_path / "short", tables[0]), (tmp_path / "long", tables[-1])):
        again = script(folder / "again", f"cat <<'END'\n{sample.text}\nEND")
        is_right(sample, seen(sample, folder / "silent", otherwise=SILENT))
        is_right(sample, seen(sample, folder / "same", otherwise=f"exec '{again}'"))


@pytest.mark.parametrize("group", GROUPS)
def test_the_command_says_the_same(group: str, tmp_path: Path) -> None:
    """As a process of its own, with the longest table of each vendor."""
    sample = max((sample for sample in TABLES if sample.group == group), key=lambda sample: len(sample.text))
    tool = fake(sample, tmp_path, {}, REFUSES)
    done = process("--json", "--no-nvml", "--tool", f"{sample.tool}={tool}")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == (f"{found['error']}\n" if found["error"] else "")
    is_right(sample, found)
    assert found["gpus"] == take_inventory({sample.tool: str(tool)}, nvml=False)["gpus"]


@pytest.mark.parametrize("name", RICHER)
def test_what_the_same_machine_answers_beside_it_only_adds(name: str, tmp_path: Path) -> None:
    sample = BY_NAME[name]
    others = [BY_NAME[other] for other in RICHER[name]]
    plain = seen(sample, tmp_path)
    richer = seen(sample, tmp_path, asked_as_we_do(others))
    assert len(plain["gpus"]) == len(richer["gpus"])
    for before, after in zip(plain["gpus"], richer["gpus"]):
        known = {key: value for key, value in before.items() if value is not None and "uuid" not in key}
        assert known.items() <= {**after, "class": before["class"]}.items()
    listed = [one for other in others for one in other.expect.get("mig_devices", [])]
    slices = [gpu for gpu in richer["gpus"] if gpu["parent_uuid"] is not None]
    assert [(one["uuid"], one["profile"]) for one in slices] == [(one["uuid"], one["profile"]) for one in listed]
    uuids = [card["uuid"] for other in others for card in other.expect["cards"] if card.get("uuid")]
    assert uuids == [gpu["uuid"] for gpu in richer["gpus"] if gpu["uuid"] in uuids]


def asked_as_we_do(others: Sequence[Sample]) -> dict[Sequence[str], str]:
    """The answers by every order of their arguments that we may ask in."""
    answers: dict[Sequence[str], str] = {}
    for other in others:
        answers[other.arguments] = other.text
        if "-t" in other.arguments:
            what, card = (other.arguments[other.arguments.index(key) + 1] for key in ("-t", "-i"))
            answers["info", "-t", what, "-i", card] = other.text
    return answers


def test_a_driver_that_knows_all_fields_is_asked_for_them(tmp_path: Path) -> None:
    """The queries that are asked first, answered out of one recorded answer to all fields."""
    sample = BY_NAME["nvidia-smi__noargs__h100__mig_four_devices_busy"]
    (listing,) = (BY_NAME[other] for other in RICHER[sample.name])
    queries = {query: columns(WIDE.text, query[0].partition("=")[2].split(",")) for query in (QUERY, *ADDED)}
    found = seen(sample, tmp_path, {**queries, listing.arguments: listing.text})
    card, *slices = found["gpus"]
    (expected,) = WIDE.expect["cards"]
    assert {key: card[key] for key in ("uuid", "model", *MEASURED)} == {
        **{key: expected[key] for key in ("uuid", *MEASURED)},
        "model": expected["name"],
    }
    assert card["compute_capability"] and card["class"] and card["health"] == {"ok": True, "problems": []}
    listed = listing.expect["mig_devices"]
    assert [(one["uuid"], one["profile"]) for one in slices] == [(one["uuid"], one["profile"]) for one in listed]
    assert {one["parent_uuid"] for one in slices} == {card["uuid"]}


def columns(text: str, fields: Sequence[str]) -> str:
    """Some columns of a table with all of them, as the tool prints it."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    heads = [head.partition(" ")[0] for head in rows[0]]
    places = [heads.index(field) for field in fields]
    return "".join(", ".join(row[place] for place in places) + "\n" for row in rows)
