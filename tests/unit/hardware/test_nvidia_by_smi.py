"""NVIDIA cards by the tool alone: what is asked when, and what becomes of cards that it does not tell of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import pytest

from runtime.agent.hardware.detector import CollectorError, NoAnswer
from runtime.agent.hardware.nvidia_by_smi import ADD_EVERY, ADDED, PROCESSES, QUERY, SmiCards
from runtime.protocol.hardware import Gpu, GpuHolder

HEADER = (
    "index, uuid, pci.bus_id, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], "
    "temperature.gpu, power.draw [W], driver_version\n"
)
TABLE = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.00                 Driver Version: 570.00         CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA Model With A Long...    On  |   00000000:17:00.0 Off |                   On |
| N/A   36C    P0             95W /  400W |     625MiB /  81920MiB |     N/A      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
|   1  ERR!                           On  |   00000000:18:00.0 Off |                 ERR! |
|ERR!  ERR!  ERR!            ERR!  / ERR! |       0MiB /  81920MiB |    ERR!      Default |
|                                         |                        |                 ERR! |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    9   0   0  |             309MiB / 19968MiB    | 28      0 |  2   0    1    0    0 |
|                  |               0MiB / 32767MiB    |           |                       |
+------------------+----------------------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0    9    0             5151      C   /opt/app/server                         280MiB |
|    0  N/A  N/A             5152      G   /usr/lib/xorg/Xorg                       10MiB |
+-----------------------------------------------------------------------------------------+
"""
ROWS = HEADER + "0, GPU-aaaa, 00000000:17:00.0, NVIDIA Model, 81920 MiB, 625 MiB, [N/A], 36, 95.00 W, 570.00\n"
MODES = "index, uuid, mig.mode.current, mig.mode.pending\n0, GPU-aaaa, Enabled, Enabled\n"
LIST = """GPU 0: NVIDIA Model With A Long Name (UUID: GPU-aaaa)
  MIG 2g.20gb     Device  0: (UUID: MIG-bbbb)
"""


def bus(index: int) -> str:
    return f"00000000:{0x41 + index:02X}:00.0"


def row(index: int) -> str:
    return f"{index}, GPU-{index}, {bus(index)}, NVIDIA L4, 23034 MiB, 4 MiB, 7 %, 31, 12 W, 550.1\n"


class Tool:
    """Answers by the arguments; what it was asked is kept."""

    def __init__(self, answer: Callable[[tuple[str, ...]], str]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, arguments: Sequence[str]) -> str:
        self.asked.append(tuple(arguments))
        return self.answer(tuple(arguments))


def eight() -> list[Gpu]:
    return SmiCards(lambda arguments: HEADER + "".join(row(index) for index in range(8))).collect([]).gpus


LOST = f"Unable to determine the device handle for GPU{bus(3)[4:]}: GPU is lost. Reboot the system\n"


@pytest.mark.case("FC-043")
def test_a_tool_that_ends_at_a_lost_card_is_asked_for_each_of_the_others() -> None:
    """What happened: with one lost card the listing failed as a whole, and the healthy ones were lost with it."""
    known = eight()

    def old_tool(arguments: tuple[str, ...]) -> str:
        if "-i" in arguments:
            return HEADER + row(next(at for at in range(8) if bus(at) == arguments[-1]))
        return LOST

    tool = Tool(old_tool)
    cards = SmiCards(tool).collect(known)
    assert [(failure.uuid, failure.index) for failure in cards.failures] == [("GPU-3", 3)]
    assert [gpu.uuid for gpu in cards.gpus] == [f"GPU-{index}" for index in range(8)]
    assert sorted(stats.uuid for stats in cards.stats) == [f"GPU-{index}" for index in range(8) if index != 3]
    assert (*QUERY, "-i", bus(3)) not in tool.asked


@pytest.mark.case("FC-043")
def test_cards_that_cannot_be_asked_are_unknown_and_neither_lost_nor_zero() -> None:
    known = eight()
    cards = SmiCards(lambda arguments: LOST).collect(known)
    assert [failure.uuid for failure in cards.failures] == ["GPU-3"]
    assert [gpu.uuid for gpu in cards.gpus] == [f"GPU-{index}" for index in range(8)]
    assert cards.stats == []


@pytest.mark.case("FC-043")
def test_an_error_that_names_no_card_is_the_collector_s() -> None:
    with pytest.raises(CollectorError, match=r"nvidia-smi has failed: Unknown Error"):
        SmiCards(lambda arguments: "Failed to initialize NVML: Unknown Error\n").collect(eight())


def test_the_plain_table_alone_is_enough() -> None:
    def bare(arguments: tuple[str, ...]) -> str:
        return TABLE if not arguments else "Invalid combination of input arguments.\n"

    cards = SmiCards(bare).collect([])
    first, part, dead = cards.gpus
    assert (first.uuid, first.memory_total_mib, first.model) == (
        "00000000:17:00.0",
        81920,
        "NVIDIA Model With A Long...",
    )
    assert (part.uuid, part.parent_uuid, part.memory_total_mib) == ("00000000:17:00.0/9/0", first.uuid, 19968)
    assert (dead.uuid, dead.model) == ("00000000:18:00.0", None)
    assert [failure.uuid for failure in cards.failures] == ["00000000:18:00.0"]
    assert [(one.uuid, one.mig_capable) for one in cards.capabilities] == [(first.uuid, True)]
    assert [(one.uuid, one.memory_used_mib) for one in cards.stats] == [(first.uuid, 625), (part.uuid, 309)]
    assert [(one.uuid, one.pid, one.ours) for one in cards.holders or []] == [
        (part.uuid, 5151, False),
        (first.uuid, 5152, None),
    ]
    assert (first.gpu_class, part.gpu_class) == (None, None), "a name that is cut is no class"


def test_a_query_that_is_refused_once_takes_no_slice_away() -> None:
    answers = {(): TABLE, ("-L",): LIST, QUERY: ROWS, ADDED[0]: MODES}
    refused: list[Sequence[str]] = []
    smi = SmiCards(lambda arguments: "busy\n" if arguments in refused else answers.get(tuple(arguments), "unknown\n"))

    def slices() -> list[Optional[str]]:
        return [gpu.profile for gpu in smi.collect([]).gpus if gpu.parent_uuid is not None]

    assert slices() == ["2g.20gb"]
    refused.append(ADDED[0])
    seen = [slices() for _ in range(ADD_EVERY * 3)]
    assert seen[: ADD_EVERY * 2 - 1] == [["2g.20gb"]] * (ADD_EVERY * 2 - 1), "refused once"
    assert seen[-1] == [], "and once more: it is not known any more"


def test_a_tool_that_hangs_on_what_only_adds_is_asked_once_in_a_collection() -> None:
    asked: list[Sequence[str]] = []

    def hangs(arguments: Sequence[str]) -> str:
        asked.append(arguments)
        if arguments == QUERY:
            return ROWS
        raise NoAnswer("nvidia-smi did not answer in 10 s")

    cards = SmiCards(hangs).collect([])
    assert [gpu.uuid for gpu in cards.gpus] == ["GPU-aaaa"] and cards.holders is None
    assert asked == [QUERY, ADDED[0]]


def test_the_list_adds_uuids_and_whole_names_to_the_table() -> None:
    def told(arguments: tuple[str, ...]) -> str:
        return {(): TABLE, ("-L",): LIST, PROCESSES: TABLE}.get(arguments, "Invalid argument\n")

    cards = SmiCards(told).collect([])
    assert [(gpu.uuid, gpu.parent_uuid, gpu.profile) for gpu in cards.gpus] == [
        ("GPU-aaaa", None, None),
        ("MIG-bbbb", "GPU-aaaa", "2g.20gb"),
        ("00000000:18:00.0", None, None),
    ]
    assert cards.gpus[0].model == "NVIDIA Model With A Long Name"
    assert cards.holders == [
        GpuHolder("MIG-bbbb", 5151, "server", 280, ours=False),
        GpuHolder("GPU-aaaa", 5152, "Xorg", 10, ours=None),
    ]


def test_what_only_adds_is_asked_seldom_and_may_fail() -> None:
    def old_driver(arguments: tuple[str, ...]) -> str:
        return HEADER + row(0) if arguments == QUERY else 'Field "compute_cap" is not a valid field to query.\n'

    tool = Tool(old_driver)
    cards = SmiCards(tool)
    first = cards.collect([])
    assert first.gpus[0].compute_capability is None and first.capabilities == [] and first.holders is None
    asked = len(tool.asked)
    cards.collect([])
    assert tool.asked[asked:] == [QUERY]


@pytest.mark.case("FC-046")
@pytest.mark.parametrize(
    ("mode", "pending", "capable", "notes"),
    [
        ("Disabled", "Enabled", False, ["mig_pending"]),
        ("Enabled", "Disabled", True, ["mig_pending"]),
        ("[N/A]", "[N/A]", False, []),
        ("Enabled", "Enabled", True, []),
    ],
)
def test_a_mode_that_is_asked_for_is_not_on(mode: str, pending: str, capable: bool, notes: list[str]) -> None:
    def modes(arguments: tuple[str, ...]) -> str:
        if "mig.mode.current" in arguments[0] if arguments else False:
            return f"index, uuid, mig.mode.current, mig.mode.pending\n0, GPU-0, {mode}, {pending}\n"
        return HEADER + row(0) if arguments == QUERY else ""

    cards = SmiCards(modes).collect([])
    assert [one.mig_capable for one in cards.capabilities] == [capable]
    assert [note.code for note in cards.notes] == notes and cards.failures == []
