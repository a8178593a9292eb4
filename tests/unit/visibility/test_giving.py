"""What a task gets for its cards, by vendor: by the engine's runtime, by device files, or a refusal with a path."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.hardware.detectors import DETECTORS, VENDORS
from runtime.agent.hardware.giving.decide import files_of
from runtime.agent.hardware.giving.description import Card, CardOptions, DeviceFile, Giving, Host, NotGiven
from runtime.agent.hardware.giving.host import _bus_id, read_host
from runtime.agent.hardware.visibility import (
    GIVINGS,
    HANDED_OUT,
    MOUNTED,
    OWNED_VARIABLES,
    container_options,
    process_options,
)
from runtime.protocol.hardware import Gpu

BUSES = ("00000000:0A:00.0", "00000000:0B:00.0", "00000000:0C:00.0")
COMMON = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "void"}
RENDER = [DeviceFile(f"/dev/dri/{name}{first + n}", bus, 109)
          for name, first in (("card", 1), ("renderD", 128)) for n, bus in enumerate(BUSES)]  # fmt: skip


def cards(vendor: str, *tells: dict[str, Any]) -> list[Card]:
    """Three cards 0, 1, 2, as their tool tells of them."""
    told = tells or ({}, {}, {})
    return [
        Card(Gpu(bus, vendor, number, pci_bus_id=bus), told[number])
        for number, bus in enumerate(BUSES[: len(told)])
    ]  # fmt: skip


def files(*paths: str, group: int | None = None) -> list[DeviceFile]:
    return [DeviceFile(path, None, group) for path in paths]


def three(form: str) -> list[DeviceFile]:
    return files(*(form.format(number) for number in range(3)))


CHIPS = [{"npu_id": 64 + n, "chip_id": 0, "logic_id": n} for n in range(3)]
NPU = [{"phy_id": 4 + n, "npu_id": 64 + n, "chip_id": 0, "map": CHIPS} for n in range(3)]
ASCENDS = [*files("/dev/davinci4", "/dev/davinci5", "/dev/davinci6", group=1000),
           *files("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc", group=1000)]  # fmt: skip

# vendor, what its tool tells, device files of the host, runtime's variable and numbers of cards 2 and 1,
# own files of card 1, files that every task needs, variables inside, variable of a process
ROWS: list[tuple[Any, ...]] = [
    ("musa", (), [*three("/dev/mtgpu.{}"), *RENDER], ("mthreads", "MTHREADS_VISIBLE_DEVICES", "2,1"),
     ["/dev/mtgpu.1", "/dev/dri/card2", "/dev/dri/renderD129"], [], ["MUSA_VISIBLE_DEVICES"], "1"),
    ("hygon", (), [*files("/dev/kfd", "/dev/mkfd"), *RENDER], None,
     ["/dev/dri/card2", "/dev/dri/renderD129"], ["/dev/kfd", "/dev/mkfd"], ["HIP_VISIBLE_DEVICES"], "1"),
    ("cambricon", (), [*three("/dev/cambricon_dev{}"), *files("/dev/cambricon_ctl", "/dev/cambricon_ipcm1")],
     ("cambricon", "CAMBRICON_VISIBLE_DEVICES", "2,1"), ["/dev/cambricon_dev1", "/dev/cambricon_ipcm1"],
     ["/dev/cambricon_ctl"], ["MLU_VISIBLE_DEVICES"], "1"),
    ("biren", [{"svi": "Disabled"}] * 3, [*three("/dev/biren/card_{}"), *files("/dev/biren-m")], None,
     ["/dev/biren/card_1"], ["/dev/biren-m"], ["BIREN_VISIBLE_DEVICES"], "1"),
    ("ascend", NPU, ASCENDS, ("ascend", "ASCEND_VISIBLE_DEVICES", "6,5"), ["/dev/davinci5"],
     ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"], ["ASCEND_RT_VISIBLE_DEVICES"], "1"),
    ("kunlun", (), [*three("/dev/xpu{}"), *files("/dev/xpuctrl")], None, ["/dev/xpu1"], ["/dev/xpuctrl"],
     ["XPU_VISIBLE_DEVICES", "CXPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"], "1"),
    ("iluvatar", (), three("/dev/iluvatar{}"), ("iluvatar", "IX_VISIBLE_DEVICES", "2,1"), ["/dev/iluvatar1"], [],
     ["CUDA_VISIBLE_DEVICES"], "1"),
    ("metax", (), [*files("/dev/mxcd"), *RENDER], None, ["/dev/dri/card2", "/dev/dri/renderD129"], ["/dev/mxcd"],
     ["MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"], "1"),
    ("enflame", (), three("/dev/gcu{}"), None, ["/dev/gcu1"], [],
     ["TOPS_VISIBLE_DEVICES", "ENFLAME_VISIBLE_DEVICES"], "1"),
]  # fmt: skip
IDS = [row[0] for row in ROWS]


def test_every_vendor_has_a_row_and_a_way() -> None:
    assert sorted(IDS) == sorted({name for name, _ in DETECTORS} - {"nvidia"}) == sorted(v.name for v in VENDORS)
    assert set(HANDED_OUT) == {"nvidia", "virtual", *IDS}
    assert len(OWNED_VARIABLES) == len(set(OWNED_VARIABLES))


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_by_device_files(row: tuple[Any, ...]) -> None:
    vendor, tells, there, _, own, control, variables, _ = row
    listed, host = cards(vendor, *tells), Host(tuple(there), runtimes=("runc", "nvidia"))
    got = container_options([listed[1]], listed, host)
    assert (got.runtime, got.requests, got.mounts) == (None, (), ())
    assert got.files == (*own, *control)
    assert got.environment == {**COMMON, **dict.fromkeys(variables, "0")}, "inside there is one card only"
    assert got.named == ",".join(own)
    assert got.groups == tuple(sorted({file.group for file in there if file.path in got.files and file.group}))
    assert set(got.environment) <= set(OWNED_VARIABLES)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_two_cards_and_what_the_driver_has_for_programs(row: tuple[Any, ...]) -> None:
    vendor, tells, there, _, own, control, variables, _ = row
    listed = cards(vendor, *tells)
    some = GIVINGS[vendor].mounts[:1]
    got = container_options([listed[2], listed[1]], listed, Host(tuple(there), frozenset(some)))
    assert got.environment == {**COMMON, **dict.fromkeys(variables, "0,1")}
    assert set(own) < set(got.files) and set(got.files) <= {file.path for file in there}
    assert got.mounts == tuple(some) and set(some) <= MOUNTED
    first = set(container_options([listed[0]], listed, Host(tuple(there))).files) - set(control)
    assert first.isdisjoint(got.files), "the third one is somebody else's"


@pytest.mark.parametrize("row", [row for row in ROWS if row[3]], ids=[row[0] for row in ROWS if row[3]])
def test_by_the_engines_runtime(row: tuple[Any, ...]) -> None:
    vendor, tells, there, (runtime, variable, numbers), *_ = row
    listed, host = cards(vendor, *tells), Host(tuple(there), MOUNTED, ("runc", runtime))
    got = container_options([listed[2], listed[1]], listed, host)
    wanted = CardOptions({**COMMON, variable: numbers}, runtime, named=f"{variable}={numbers}")
    assert got == wanted, "and nothing of the other way"
    none = container_options([], (), host).environment
    assert none == {**COMMON, **({variable: "none"} if vendor == "musa" else {})}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_by_a_plain_process(row: tuple[Any, ...]) -> None:
    vendor, tells, there, _, own, control, variables, number = row
    listed = cards(vendor, *tells)
    got = process_options([listed[1]], listed, Host(tuple(there), MOUNTED, ("ascend", "mthreads")))
    assert got.files == (*own, *control)
    hidden = {} if "CUDA_VISIBLE_DEVICES" in variables else {"CUDA_VISIBLE_DEVICES": ""}
    assert got.environment == {**COMMON, **hidden, variables[0]: number}
    assert (got.groups, got.mounts, got.runtime) == ((), (), None)


def needed(row: tuple[Any, ...]) -> list[str]:
    vendor, own, control = row[0], row[4], row[5]
    optional = ("/dev/cambricon_ipcm", "/dev/dri/card", "/dev/dri/render" if vendor == "musa" else "/dev/dri/card")
    return [path for path in (*own, *control) if not path.startswith(optional)]


MISSING = [(row, path) for row in ROWS for path in needed(row)]


@pytest.mark.parametrize(("row", "path"), MISSING, ids=[f"{row[0]}-{path.rsplit('/', 1)[1]}" for row, path in MISSING])
@pytest.mark.parametrize("decide", [container_options, process_options])
def test_a_missing_file_is_named(row: tuple[Any, ...], path: str, decide: Any) -> None:
    vendor, tells, there, *_ = row
    listed, host = cards(vendor, *tells), Host(tuple(file for file in there if file.path != path))
    link = "/dev/dri/by-path/pci-0000:0b:00.0-render"
    with pytest.raises(NotGiven, match=(link if "render" in path else path) + " is missing on this node"):
        decide([listed[1]], listed, host)


@pytest.mark.parametrize(
    ("vendor", "tells", "there", "chosen", "wanted"),
    [
        # Two devices on one card, with one PCI address: the tool names the files.
        ("kunlun", [{"device_node": f"/dev/xpu{n}"} for n in (2, 3)], ["/dev/xpu2", "/dev/xpu3"], 1, "/dev/xpu3"),
        # Two chips on one card.
        ("ascend", [{"phy_id": 6}, {"phy_id": 7}], ["/dev/davinci6", "/dev/davinci7"], 0, "/dev/davinci6"),
    ],
)  # fmt: skip
def test_two_devices_on_one_card(
    vendor: str, tells: list[dict[str, Any]], there: list[str], chosen: int, wanted: str
) -> None:
    listed = [Card(Gpu(f"{BUSES[0]}/{n}", vendor, n, pci_bus_id=BUSES[0]), each) for n, each in enumerate(tells)]
    host = Host(tuple(files(*there, *GIVINGS[vendor].control)))
    assert container_options([listed[chosen]], listed, host).files[0] == wanted
    with pytest.raises(NotGiven, match="is not known"):
        files_of(GIVINGS[vendor], [dataclasses.replace(listed[0], tells={})], bare(listed), both(host, BUSES[0]))


def bare(listed: Sequence[Card]) -> list[Card]:
    """Without the tool's word, and with one number for all."""
    return [Card(dataclasses.replace(card.gpu, index=listed[0].gpu.index)) for card in listed]


def both(host: Host, bus: str) -> Host:
    """The kernel says of every file that it is of this one card; and there is one for its number, too."""
    more = [DeviceFile(file.path.rstrip("0123456789") + "0", bus) for file in host.files[:1]]
    return Host(tuple(dataclasses.replace(file, bus_id=bus) for file in (*host.files, *more)))


GCU = GIVINGS["enflame"]


@pytest.mark.parametrize(
    ("listed", "there", "chosen", "wanted"),
    [
        # The kernel's word counts, whatever the numbers are.
        ([0, 1], {"gcu0": BUSES[1], "gcu1": BUSES[0]}, 0, "/dev/gcu1"),
        ([0, 1], {"gcu0": BUSES[1], "gcu5": BUSES[0], "gcu6": None}, 0, "/dev/gcu5"),
        # A gap shows that numbers do not move; so does the highest one.
        ([0, 2], {"gcu0": None, "gcu1": None, "gcu2": None}, 1, "/dev/gcu2"),
        # One card has dropped out, and the others may have moved up: nobody can tell.
        ([0, 1], {"gcu0": None, "gcu1": None, "gcu2": None}, 1, "whether /dev/gcu1 is card .* is not known"),
        ([0, 1], {"gcu0": None, "gcu1": BUSES[2]}, 1, "/dev/gcu1 is of the device at 00000000:0C:00.0"),
        ([None, 1], {"gcu0": None, "gcu1": None}, 0, "its tool has no number"),
        ([1, 1], {"gcu0": None, "gcu1": None}, 0, "2 cards have the number 1"),
    ],
)  # fmt: skip
def test_a_number_is_trusted_only_where_it_cannot_have_moved(
    listed: list[int | None], there: dict[str, str | None], chosen: int, wanted: str
) -> None:
    all_cards = [Card(Gpu(bus, "enflame", n, pci_bus_id=bus)) for bus, n in zip(BUSES, listed)]
    host = Host(tuple(DeviceFile(f"/dev/{name}", bus) for name, bus in there.items()))
    if wanted.startswith("/dev/gcu") and " " not in wanted:
        assert files_of(GCU, [all_cards[chosen]], all_cards, host) == (wanted,)
        return
    with pytest.raises(NotGiven, match=wanted):
        files_of(GCU, [all_cards[chosen]], all_cards, host)


def test_a_split_card_has_the_files_that_the_kernel_says() -> None:
    listed = cards("biren", {"svi": "Enabled"}, {"svi": "Disabled"})
    there = [DeviceFile(f"/dev/biren/card_{n}", bus) for n, bus in ((0, BUSES[0]), (1, BUSES[0]), (2, BUSES[1]))]
    host = Host((*there, DeviceFile("/dev/biren-m")))
    assert container_options([listed[0]], listed, host).named == "/dev/biren/card_0,/dev/biren/card_1"
    assert container_options([listed[1]], listed, host).named == "/dev/biren/card_2"
    with pytest.raises(NotGiven, match="may be split"):
        container_options([listed[0]], listed, Host((*three("/dev/biren/card_{}"), DeviceFile("/dev/biren-m"))))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ([Card(Gpu("a", "musa", 0)), Card(Gpu("b", "metax", 0))], "cards of metax and musa together"),
        ([Card(Gpu("a", "somebody", 0))], "cannot give a card of somebody"),
        ([Card(Gpu("a", "hygon", 0, parent_uuid="b"))], "cannot give a slice of a card of hygon"),
        ([Card(Gpu("a", "metax", 0))], "no PCI address"),
        ([Card(Gpu(each, "metax", 0, pci_bus_id=BUSES[0])) for each in "ab"], "others share 00000000:0A:00.0"),
        ([Card(Gpu("a", "ascend", 0), {"phy_id": 0})], "/dev/davinci0 is missing"),
    ],
)
def test_refused(chosen: list[Card], words: str) -> None:
    for decide in (container_options, process_options):
        with pytest.raises(NotGiven, match=words):
            decide(chosen, chosen, Host())


def test_two_cards_of_which_the_tool_says_the_same_are_not_both_given() -> None:
    alike = [Card(Gpu(each, "kunlun", n), {"device_node": "/dev/xpu1"}) for n, each in enumerate("ab")]
    with pytest.raises(NotGiven, match="/dev/xpu1 would be the file of two"):
        container_options(alike, alike, Host(tuple(files("/dev/xpu1", "/dev/xpuctrl"))))


def test_a_process_needs_the_number_that_programs_use() -> None:
    listed = cards("ascend", *({"phy_id": each["phy_id"], "npu_id": each["npu_id"], "chip_id": 0} for each in NPU))
    with pytest.raises(NotGiven, match=r"which number card .* has"):
        process_options([listed[0]], listed, Host(tuple(ASCENDS)))
    host = Host(runtimes=("ascend",))
    alike = [dataclasses.replace(card, tells={}, gpu=dataclasses.replace(card.gpu, index=64)) for card in listed]
    with pytest.raises(NotGiven, match="which number card"):
        container_options([alike[0]], alike, host)


def test_nothing_is_given_that_opens_the_host() -> None:
    """Not a folder of the host's own, and no key of the engine's host configuration but those that give cards."""
    closed = ("/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/opt", "/dev", "/var", "/run", "/usr/local")
    assert MOUNTED.isdisjoint(closed) and not any(place.startswith(("/dev", "/run", "/proc")) for place in MOUNTED)
    for giving in GIVINGS.values():
        assert all(pattern.startswith("/dev/") for pattern in (*giving.patterns, *giving.control))


def plain(**more: Any) -> Giving:
    return Giving(files=lambda card, listed, host: [], variables=("V",), **more)


def test_what_is_read_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "opt/x").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/xpu0").write_text("a file is no device")
    about = plain(patterns=("/dev/xpu[0-9]*",), mounts=("/opt/x", "/opt/y"))
    assert read_host(about, ["runc"], tmp_path) == Host((), frozenset({"/opt/x"}), ("runc",))
    real = read_host(plain(patterns=("/dev/nul[l]",), control=("/dev/null", "/dev/nowhere")))
    assert [(file.path, file.bus_id) for file in real.files] == [("/dev/null", None)]


def test_whose_a_device_file_is_the_kernel_says(tmp_path: Path) -> None:
    pci = tmp_path / "sys/devices/pci0000:00/0000:00:01.0/0000:0b:00.0"
    (pci / "drm/card1").mkdir(parents=True)
    virtual = tmp_path / "sys/devices/virtual/xpu/xpu0"
    virtual.mkdir(parents=True)
    links = tmp_path / "sys/dev/char"
    links.mkdir(parents=True)
    (links / "226:1").symlink_to("../../devices/pci0000:00/0000:00:01.0/0000:0b:00.0/drm/card1")
    (links / "240:0").symlink_to("../../devices/virtual/xpu/xpu0")
    (links / "240:1").symlink_to("../../devices/virtual/xpu/xpu0")
    number = {each: os.makedev(*each) for each in ((226, 1), (240, 0), (240, 9))}
    assert _bus_id(number[226, 1], tmp_path) == "00000000:0B:00.0"
    assert _bus_id(number[240, 0], tmp_path) is None
    assert _bus_id(number[240, 9], tmp_path) is None
    (virtual / "device").symlink_to("../../../pci0000:00/0000:00:01.0/0000:0b:00.0")
    assert _bus_id(number[240, 0], tmp_path) == "00000000:0B:00.0"
