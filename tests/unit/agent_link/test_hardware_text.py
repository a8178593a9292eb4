"""What becomes of vendors' text: values, rows, classes, commands."""

from __future__ import annotations

import pytest

from runtime.agent.hardware.detector import CollectorError, gpu_class
from runtime.agent.hardware.giving.description import Card, CardOptions, Host
from runtime.agent.hardware.nvidia_by_smi import Listed, SmiCards, cards_of_smi
from runtime.agent.hardware.nvml_cards import cards_of_nvml, topology_of
from runtime.agent.hardware.parsers import nvidia_smi
from runtime.agent.hardware.pci import accelerators, normal_bus_id, numa_node
from runtime.agent.hardware.reading import CardReading
from runtime.agent.hardware.tools import find_command
from runtime.agent.hardware.values import number, word
from runtime.agent.hardware.visibility import container_options
from runtime.protocol.hardware import Gpu
from tests.unit.hardware.nvml_answers import answer
from tests.unit.hardware.nvml_answers import card as nvml_card


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("70", 70.0),
        ("70.55 W", 70.55),
        ("81559 MiB", 81559.0),
        ("0 %", 0.0),
        ("-3", -3.0),
        *(
            (text, None)
            for text in (
                "12,5",
                "1,024 MiB",
                "[N/A]",
                "N/A",
                "[Not Supported]",
                "[Unknown Error]",
                "ERR!",
                "-",
                "",
                None,
                "a 7",
            )
        ),
    ],
)
def test_a_value_that_cannot_be_read_is_none(text, value) -> None:
    assert number(text) == value


@pytest.mark.parametrize(("text", "name"), [("NVIDIA L4", "NVIDIA L4"), ("[N/A]", None), ("ERR!", None), (" ", None)])
def test_names(text, name) -> None:
    assert word(text) == name


HEADER = (
    "index, uuid, pci.bus_id, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], "
    "temperature.gpu, power.draw [W], driver_version\n"
)


def row(cells: str) -> CardReading:
    (only,) = nvidia_smi.parse([], HEADER + cells + "\n").cards
    return only


@pytest.mark.case("FC-048")
@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("0, GPU-a, 00000000:17:00.0, NVIDIA L4, 23034 MiB, 4 MiB, [N/A], 31, 12.50 W, 550.1", (4, None, 31, 12.5)),
        (
            "0, GPU-a, 00000000:17:00.0, NVIDIA L4, 23034 MiB, 4 MiB, 7 %, [Not Supported], 12.5 W, 550.1",
            (4, 7, None, 12.5),
        ),
        ("0, GPU-a, 00000000:17:00.0, NVIDIA L4, 23034 MiB, 4 MiB, 7 %, 31, [Unknown Error], 550.1", (4, 7, 31, None)),
        ("0, GPU-a, 00000000:17:00.0, NVIDIA L4, 23034 MiB, 4 MiB, ERR!, 31, 12.5 W, 550.1", (4, None, 31, 12.5)),
        ("0, GPU-a, 00000000:17:00.0, NVIDIA L4, 23034 MiB, , 7 %, 31, 12.5 W, 550.1", (None, 7, 31, 12.5)),
        ("0, GPU-a, 00000000:17:00.0, NVIDIA L4, 23034 MiB, 4 MiB, 7 %, 31, 12,5 W, 550.1", (4, 7, 31, None)),
        ("0, GPU-a, 00000000:17:00.0, Card, of two parts, 23034 MiB, 4 MiB, 7 %, 31, 12.5 W, 550.1", (4, 7, 31, 12.5)),
    ],
)
def test_one_cell_that_is_no_number_leaves_the_rest(cells: str, expected) -> None:
    """What happened: one non-number raised a conversion error and the whole collector failed."""
    found = row(cells)
    assert (found.memory_used_mib, found.utilization_pct, found.temperature_c, found.power_w) == expected
    assert found.uuid == "GPU-a" and found.memory_total_mib == 23034 and found.failure is None
    assert found.name in ("NVIDIA L4", "Card, of two parts")


@pytest.mark.case("FC-048")
@pytest.mark.parametrize(
    ("cells", "name", "expected"),
    [
        ("0,GPU-a,0:17:00.0,NVIDIA L4,23034 MiB,4 MiB,7 %,31,12.5 W,550.1", "NVIDIA L4", (23034, 4, 7, 31, 12.5)),
        ("0,GPU-a,0:17:00.0,NVIDIA L4,23034,4,7,31,12,5,550.1", None, (None,) * 5),
        ("0,GPU-a,0:17:00.0,Card, of two parts,23034,4,7,31,12.5,550.1", None, (None,) * 5),
        ("0,GPU-a,0:17:00.0,Card,of,many,23034,4,7,31,12,5,550.1", None, (None,) * 5),
    ],
)
def test_a_comma_that_may_end_a_cell_or_not_never_shifts_a_column(cells: str, name: str | None, expected) -> None:
    found = row(cells)
    told = found.memory_total_mib, found.memory_used_mib, found.utilization_pct, found.temperature_c, found.power_w
    assert (found.index, found.uuid, found.bus_id, found.name, found.failure) == (0, "GPU-a", "0:17:00.0", name, None)
    assert told == expected


@pytest.mark.case("FC-048")
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n \n\t\n", "\r\n\r\n"])
def test_all_other_cards_are_kept_and_blank_lines_are_none(end: str) -> None:
    rows = [
        "0, GPU-a, 00000000:17:00.0, NVIDIA L4, 23034 MiB, 4 MiB, 7 %, 31, 12,5 W, 550.1",
        "1, GPU-b, 00000000:65:00.0, Card, of two parts, 23034 MiB, [Unknown Error], , ERR!, 13.5 W, 550.1",
        "2, GPU-c, 00000000:B1:00.0, NVIDIA L4, 23034 MiB, 6 MiB, 9 %, 33, [Not Supported], 550.1",
        "3, GPU-d, 00000000:CA:00.0, NVIDIA L4, 23034 MiB, 6 MiB, 9 %, 33, 12,5",  # cut in its last cells
    ]
    cards = nvidia_smi.parse([], HEADER + "\n".join(rows) + end).cards
    assert [
        (card.uuid, card.memory_used_mib, card.utilization_pct, card.temperature_c, card.power_w) for card in cards
    ] == [
        ("GPU-a", 4, 7, 31, None),
        ("GPU-b", None, None, None, 13.5),
        ("GPU-c", 6, 9, 33, None),
    ]
    assert cards[1].name == "Card, of two parts"


def test_columns_are_matched_by_header_whatever_their_order() -> None:
    text = "uuid, memory.used [MiB], index\nGPU-a, 5 MiB, 3\n\n"
    assert nvidia_smi.parse([], text).cards == [CardReading(index=3, uuid="GPU-a", memory_used_mib=5)]


@pytest.mark.parametrize(
    ("cells", "failure"),
    [
        ("0, [GPU requires reset], 00000000:17:00.0, L4, 1 MiB, 0 MiB, 1, 1, 1, 1", "GPU requires reset"),
        ("0, GPU-a, 00000000:17:00.0, NVIDIA L4, 1 MiB, 0 MiB, [GPU is lost], 1, 1, 5", "GPU is lost"),
        ("0, GPU-a, 00000000:17:00.0, ERR!, 1 MiB, 0 MiB, 1, 1, 1, 5", "ERR! in place of its name"),
        ("0, [Unknown Error], 00000000:17:00.0, L4, 1 MiB, 0 MiB, 1, 1, 1, 5", "unknown error for its handle"),
    ],
)
def test_what_condemns_a_card(cells: str, failure: str) -> None:
    assert row(cells).failure == failure


@pytest.mark.parametrize(
    ("line", "index", "bus_id"),
    [
        (
            "Unable to determine the device handle for GPU 0000:4C:00.0: GPU is lost.  Reboot the system",
            None,
            "00000000:4C:00.0",
        ),
        ("Unable to determine the device handle for GPU0000:07:00.0: Unknown Error", None, "00000000:07:00.0"),
        ("Unable to determine the device handle for GPU0: 0000:24:00.0: GPU is lost.  Reboot", 0, "00000000:24:00.0"),
    ],
)
def test_a_card_that_cannot_be_opened_is_blamed_and_the_others_go_on(line: str, index, bus_id: str) -> None:
    text = f"{line}\n{HEADER}1, GPU-b, 00000000:65:00.0, NVIDIA L4, 1 MiB, 0 MiB, 1 %, 1, 1 W, 5\n"
    reading = nvidia_smi.parse([], text)
    ((blame,),) = [error.blamed for error in reading.errors]
    assert (blame.index, normal_bus_id(blame.bus_id)) == (index, bus_id)
    assert [card.uuid for card in reading.cards] == ["GPU-b"]


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "Failed to initialize NVML: Driver/library version mismatch",
        'Field "x" is not a valid field to query.',
        "",
        "something else",
    ],
)
def test_a_failure_of_the_whole_tool_condemns_no_card(text: str) -> None:
    with pytest.raises(CollectorError):
        SmiCards(lambda arguments: text).collect([])


def test_no_devices_is_an_empty_list() -> None:
    cards = SmiCards(lambda arguments: "No devices were found\n").collect([])
    assert (cards.gpus, cards.failures) == ([], [])


@pytest.mark.parametrize(
    ("vendor", "model", "memory", "name"),
    [
        ("nvidia", "NVIDIA H100 80GB HBM3", 81559, "nvidia-h100-80gb-hbm3-80g"),
        ("nvidia", "NVIDIA A800-SXM4-80GB", 81920, "nvidia-a800-sxm4-80gb-80g"),
        ("nvidia", "NVIDIA L4", 23034, "nvidia-l4-24g"),
        ("nvidia", "Tesla T4", 15360, "nvidia-tesla-t4-16g"),
        ("nvidia", "NVIDIA H200", 143771, "nvidia-h200-141g"),
        ("nvidia", "NVIDIA GeForce RTX 4090", 24564, "nvidia-geforce-rtx-4090-24g"),
        ("nvidia", "NVIDIA GB10", None, "nvidia-gb10"),
        ("ascend", "910B3", 65536, "ascend-910b3-64g"),
        ("nvidia", None, 81559, None),
    ],
)
def test_the_class_of_a_card(vendor: str, model, memory, name) -> None:
    assert gpu_class(vendor, model, memory) == name


def test_unread_values_are_none_and_no_failure(tmp_path) -> None:
    unread = ("memory_used", "utilization", "temperature", "power_mw", "name", "capability", "mig")
    dumb = nvml_card(0, **dict.fromkeys(unread))
    cards = cards_of_nvml(answer(dumb), [], tmp_path)
    (stats,) = cards.stats
    assert (stats.memory_used_mib, stats.utilization_pct, stats.temperature_c, stats.power_w) == (None,) * 4
    assert cards.failures == [] and cards.gpus[0].gpu_class is None and cards.capabilities == []


def test_a_set_of_impossible_values_condemns_the_card(tmp_path) -> None:
    cards = cards_of_nvml(answer(nvml_card(0, power_mw=65_535_000, temperature=0), nvml_card(1)), [], tmp_path)
    assert [failure.uuid for failure in cards.failures] == ["GPU-0"] and len(cards.gpus) == 2
    assert [stats.uuid for stats in cards.stats] == ["GPU-1"]


def test_a_lost_card_keeps_its_name_and_place_in_the_inventory(tmp_path) -> None:
    known = cards_of_nvml(answer(nvml_card(0), nvml_card(1), nvml_card(2)), [], tmp_path).gpus
    failures = [{"index": 1, "code": 15, "text": "GPU is lost"}]
    cards = cards_of_nvml(answer(nvml_card(0), nvml_card(2), failures=failures), known, tmp_path)
    assert sorted(gpu.uuid for gpu in cards.gpus) == ["GPU-0", "GPU-1", "GPU-2"]
    (failure,) = cards.failures
    assert (failure.uuid, failure.index) == ("GPU-1", 1) and "NVML code 15" in failure.reason


def test_indices_that_moved_blame_nobody_who_answers(tmp_path) -> None:
    known = cards_of_nvml(answer(nvml_card(0), nvml_card(1)), [], tmp_path).gpus
    moved = nvml_card(0, uuid="GPU-1")
    failures = [{"index": 1, "code": 999, "text": "unknown"}]
    cards = cards_of_nvml(answer(moved, failures=failures), known, tmp_path)
    assert [failure.uuid for failure in cards.failures] == [None]


def test_slices_are_listed_beside_their_card(tmp_path) -> None:
    part = {
        "uuid": "MIG-1",
        "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "gi_id": 7,
        "ci_id": 0,
        "memory_total": 9984 << 20,
        "memory_used": None,
    }
    cards = cards_of_nvml(answer(nvml_card(0, mig=True, slices=[part])), [], tmp_path)
    assert [(gpu.uuid, gpu.parent_uuid, gpu.profile, gpu.gi_id) for gpu in cards.gpus] == [
        ("GPU-0", None, None, None),
        ("MIG-1", "GPU-0", "1g.10gb", 7),
    ]
    assert cards.capabilities[0].mig_capable is True


@pytest.mark.parametrize(
    ("links", "domains"),
    [
        ([["0000:01:00.0"], ["0000:00:00.0"], []], [["GPU-0", "GPU-1"]]),
        ([["0000:99:00.0"], ["0000:99:00.0"], ["0000:99:00.0"]], [["GPU-0", "GPU-1", "GPU-2"]]),
        ([None, None, None], []),
        ([["0000:00:00.0"], [], []], []),
    ],
)
def test_nvlink_domains(tmp_path, links, domains) -> None:
    cards = [nvml_card(index, links=ends) for index, ends in enumerate(links)]
    topology = topology_of(cards, cards_of_nvml(answer(*cards), [], tmp_path).gpus)
    assert topology.nvlink_domains == domains


def test_smi_rows_become_the_same_cards(tmp_path) -> None:
    main = nvidia_smi.parse(
        [], HEADER + "0, GPU-a, 00000000:17:00.0, NVIDIA L4, 23034 MiB, 4 MiB, 7 %, 31, 12 W, 550\n"
    )
    added = {"GPU-a": {"compute_capability": "8.9", "mig_mode": "Disabled"}}
    cards = cards_of_smi(Listed(main, added), [], tmp_path)
    assert cards.gpus == [
        Gpu("GPU-a", "nvidia", 0, "NVIDIA L4", "nvidia-l4-24g", 23034, "00000000:17:00.0", None, "8.9", "550")
    ]
    assert cards.capabilities[0].mig_capable is False


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("0000:4C:00.0", "00000000:4C:00.0"),
        ("00000008:01:00.0", "00000008:01:00.0"),
        ("4c:00.1", "00000000:4C:00.1"),
        ("x", None),
        (None, None),
    ],
)
def test_bus_ids_in_one_form(text, normal) -> None:
    assert normal_bus_id(text) == normal


def test_what_the_kernel_lists(tmp_path) -> None:
    for name, vendor, kind in (("0000:17:00.0", "0x10de", "0x030200"), ("0000:18:00.0", "0x10de", "0x040300")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
        (tmp_path / name / "numa_node").write_text("-1\n" if name.endswith("18:00.0") else "1\n")
    assert accelerators("0x10de", tmp_path) == ["0000:17:00.0"]
    assert numa_node("00000000:17:00.0", tmp_path) == 1
    assert numa_node("00000000:18:00.0", tmp_path) is None
    assert accelerators("0x10de", tmp_path / "none") == []


@pytest.mark.case("FC-049")
def test_commands_beside_the_path_are_found(tmp_path) -> None:
    """What happened: the tool sat in /usr/lib/wsl/lib, which is not on the PATH of a service."""
    wsl, on_path = tmp_path / "wsl" / "nvidia-smi", tmp_path / "bin" / "nvidia-smi"
    for file in (wsl, on_path):
        file.parent.mkdir()
        file.write_text("#!/bin/sh\n")
    table = {"nvidia-smi": (str(wsl),)}

    def find(**options):
        return find_command("nvidia-smi", fallbacks=table, path=str(on_path.parent), **options)

    wsl.chmod(0o755)
    assert find() == str(wsl)
    wsl.chmod(0o644)
    assert find() is None
    on_path.chmod(0o755)
    assert find() == str(on_path)
    wsl.chmod(0o755)
    assert find() == str(wsl)
    assert find(setting="/else/smi") == "/else/smi"
    assert find(fixed=(str(on_path),)) == str(on_path)


def test_what_a_container_sees() -> None:
    card, two = Card(Gpu("GPU-1", "nvidia")), Card(Gpu("GPU-2", "nvidia"))
    assert container_options([]) == CardOptions({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "void"})
    by_runtime = container_options([card, two], host=Host(runtimes=("runc", "nvidia")))
    assert by_runtime.runtime == "nvidia" and by_runtime.environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    by_request = container_options([card], host=Host(runtimes=("runc",)))
    assert by_request.requests[0]["DeviceIDs"] == ["GPU-1"]
