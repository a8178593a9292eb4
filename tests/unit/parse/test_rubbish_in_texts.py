"""Texts that no tool prints, as they come out of cut, joined and retyped ones: nothing is made of what is not there."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.agent.parse.registry import parse_text
from tests.samples import differences

LONG = "9" * 5000
UNKNOWN = {"kind": None, "reason": None}

CASES: list[tuple[str, str, list[str], str, dict[str, Any]]] = [
    ("a state without an end", "docker", ["inspect"], '"State": ' + '{"a":' * 20_000, UNKNOWN),
    ("an exit code that is a word", "docker", ["inspect"], '"State": {"ExitCode": true}', UNKNOWN),
    (
        *("a digit that is none", "docker", ["run"]),
        'error gathering device information while adding custom device "²": no such file or directory',
        {"reason": "device", "path": "²"},
    ),
    ("a record without an end", "sysfs", [], '{"a":' * 20_000, {"ports": []}),
    (
        *("an adapter called by a number", "sysfs", []),
        f'{{"²/ports/1/state": "4: ACTIVE", "{LONG[:40]}/ports/1/state": "4: ACTIVE"}}',
        {"active": 2},
    ),
    (
        *("a file that is not there", "sysfs", []),
        '{"a/ports/1/state": null, "a/ports/1/rate": "100 Gb/sec", "a/ports/1/link_layer": true}',
        {"ports": [{"hca": "a", "state": None, "rate_gbps": 100.0, "link_layer": None}]},
    ),
    (
        *("numbers without an end", "vllm", []),
        f"CUDA out of memory. GPU {LONG} has a total capacity of {LONG} GiB",
        {"kind": "permanent", "reason": "memory"},
    ),
    (
        *("a segment without an end", "nccl", []),
        f"failed to extend /dev/shm/x to {LONG} bytes, error: No space left on device",
        {"kind": "permanent", "reason": "shm"},
    ),
    (
        *("a context that no machine holds", "vllm", []),
        f'{{"data": [{{"id": "a", "max_model_len": {LONG[:400]}}}]}}',
        {"models": [{"id": "a", "max_model_len": None}]},
    ),
    (
        *("a time of day where an address should be", "docker", ["run"]),
        "Bind for 23:58:51 failed: port is already allocated.",
        {"reason": "port"},
    ),
    ("a card without a number", "efsmi", ["-q"], "---- Enflame System Man\nGPU \n", {"gpus": []}),
]


@pytest.mark.parametrize(("what", "tool", "arguments", "text", "right"), CASES, ids=lambda value: str(value)[:30])
def test_nothing_is_made_of_it(what: str, tool: str, arguments: list[str], text: str, right: dict[str, Any]) -> None:
    found = parse_text(tool, arguments, text)
    assert differences(right, found) == []
    assert not {"wanted_bytes", "gpu_index_in_process", "total_gib", "port"} & set(found)


def test_words_below_the_word_name_are_no_cards() -> None:
    assert parse_text("nvidia-smi", ["-q"], "        NAME\n        USED GPU\n    CAPABILITIES\n")["gpus"] == []
    (found,) = parse_text("nvidia-smi", ["--query-gpu=name", "--format=csv"], "name\nParrot 40GB\n")["gpus"]
    assert found["model"] == "Parrot 40GB"


def test_a_title_that_stands_twice_names_no_card() -> None:
    head = "DEV    DEV               UUID\n-----------\n"
    assert parse_text("efsmi", ["-L"], head + "4      A9X2      TQ77\n")["gpus"] == []


def test_an_address_with_a_remark_in_it_is_none() -> None:
    listed = "GPU#1  Parrot  0000{}:22:00.0  Available\n"
    assert [card["bus_id"] for card in parse_text("mx-smi", ["-L"], listed.format(""))["gpus"]] == ["0000:22:00.0"]
    assert "0000:22:00.0" not in [card["bus_id"] for card in parse_text("mx-smi", [], listed.format("[N/A]"))["gpus"]]


def test_a_profile_without_a_number_has_none() -> None:
    text = "| GPU instance profiles: |\n| GPU  Name  Memory |\n| 2  MIG 1g.7gb  6.5 |\n"
    assert parse_text("nvidia-smi", ["mig", "-lgip"], text)["mig"]["profiles"] == [
        {"gpu": 2, "name": "1g.7gb", "id": None, "memory_gib": 6.5}
    ]


def test_the_time_in_a_cell_is_no_temperature() -> None:
    head = "| DEV  NAME | BUS-ID |\n| Temp  Pwr(Usage/Cap) | Mem |\n|---------|\n"
    card = "| 3  Parrot | 00:3b:00.0 |\n| {} | x |\n"
    for cell, heat in (("41 C", 41.0), ("23:58:51 C", None), ("23:58:51.417 C", None), ("1,5 C", None)):
        (found,) = parse_text("efsmi", [], head + card.format(cell))["gpus"]
        assert found["temperature_c"] == heat


def test_a_date_in_a_number_s_place_is_no_number() -> None:
    date = "2031/07/19 23:58:51.417"
    said = '{"card3": {"Temperature (Sensor junction) (C)": DATE}}'
    (found,) = parse_text("hy-smi", [], said.replace("DATE", date))["gpus"]
    assert (found["index"], found["temperature_c"]) == (3, None)
    for total, told in (("15.5", 15.5), ("23:58:51", None), ("Jul 19 23:58:51 2031", None)):
        found = parse_text("vllm", [], f"CUDA out of memory. (GPU 0; {total} GiB total capacity; 1 GiB free)")
        assert found.get("total_gib") == told
    share = "Not enough memory. Please try to increase --mem-fraction-static. mem_fraction_static="
    assert "mem_fraction_static" not in parse_text("sglang", [], share + date)
    assert parse_text("sglang", [], share + "0.8,")["mem_fraction_static"] == 0.8
    head = "| GPU  NAME | Bus-id | GPU-Util |\n| Temp  Power | Memory-Usage | |\n|---------|\n"
    (found,) = parse_text("mx-smi", [], head + "| 3  Parrot | 00:3b:00.0 | 0Sat Jul 19 23:58:51 2031% |\n")["gpus"]
    assert found["utilization_pct"] is None
    said = parse_text("npu-smi", ["info"], "dcmi model initialized failed. ret is 23:58:51")
    assert "code" not in said
    head = "DCU  Temp  AvgPwr  Perf  PwrCap  VRAM%  DCU%  Mode\n"
    (found,) = parse_text("hy-smi", [], head + "5  54.0C  95.0W  Sat Jul 19 23:58:51 2031\n")["gpus"]
    assert (found["temperature_c"], found["memory_used_pct"], found["utilization_pct"]) == (54.0, None, None)
    assert "gpu_index_in_process" not in parse_text("vllm", [], f"CUDA out of memory. (GPU {date}")
    head = "| GPU  NAME | Bus-id |\n| Temp  Pwr:Usage/Cap | Memory-Usage |\n|---------|\n"
    for power, draw in (("2031 / 450W", None), ("ERR! / 450W", None), ("N/A / 450W", None), ("45 W / 450 W", 45.0)):
        (found,) = parse_text("mx-smi", [], head + f"| 3  Parrot | 00:3b:00.0 |\n| 30C {power} | x |\n")["gpus"]
        assert (found["power_w"], found["power_limit_w"]) == (draw, 450.0)


@pytest.mark.parametrize("sign", [" ", "[", "1"])
def test_a_line_without_an_end_is_read_all_the_same(sign: str) -> None:
    """Patterns that take the square of its length would need hours here."""
    head = "| GPU  NAME | BUS-ID |\n| Temp  Pwr(Usage/Cap) | Mem |\n|---------|\n"
    text = f"{head}| 3  Parrot | 00:3b:00.0 |\n| 41 C {sign * 150_000} x | {sign * 150_000} |\n"
    for tool in ("efsmi", "mx-smi", "ixsmi", "brsmi", "cnmon", "nvidia-smi", "ibstat", "vllm"):
        parse_text(tool, [], text)
    assert [card["index"] for card in parse_text("efsmi", [], text)["gpus"]] == [3]


def test_two_processes_in_one_line_are_not_one() -> None:
    head = "| Process: |\n| GPU  PID  Process Name  GPU Memory |\n"
    one = "| 1  400  work  20 |\n"
    both = "| 1  400  work  20 || 2  500  work  30 |\n"
    assert [each["pid"] for each in parse_text("mx-smi", [], head + one)["processes"]] == [400]
    assert not parse_text("mx-smi", [], head + both)["processes"]
    assert not parse_text("mx-smi", [], head + "| 1  400  work Sat Jul 19 23:58:51 2031 |\n")["processes"]


def test_a_date_in_a_cell_of_nvidia_smi_is_no_reading() -> None:
    table = (
        "| NVIDIA-SMI 550.1  Driver Version: 550.1 |\n+----+\n| GPU  Name | Bus-Id | ECC |\n"
        "| Fan  Temp  Perf  Pwr:Usage/Cap | Memory-Usage | GPU-Util |\n|====+====+====|\n"
        "| 3  Parrot  Off | 00000000:3B:00.0 Off | 0 |\n| N/A  {}  P0  {} / 700W | 1MiB / 99MiB | 0%  Default |\n"
    )
    for heat, watts, told in (
        ("41C", "70W", (41.0, 70.0)),
        ("Jul 19 23:58:51 2031C", "19 23:58:51 2031W", (None,) * 2),
    ):
        (found,) = parse_text("nvidia-smi", [], table.format(heat, watts))["gpus"]
        assert (found["temperature_c"], found["power_w"]) == told
    profiles = "| GPU instance profiles: |\n| GPU  Name  ID  Memory |\n| 2  MIG 1g.7gb  {}  6.5 |\n"
    for number, right in (("14", 14), ("14 Jul 19", None)):
        (found,) = parse_text("nvidia-smi", ["mig", "-lgip"], profiles.format(number))["mig"]["profiles"]
        assert (found["id"], found.get("memory_gib")) == (right, 6.5 if right else None)


def test_a_year_is_no_memory_of_a_process() -> None:
    of_tools = {
        "cnmon": "| CNMON v5 Driver v5 |\n+---+\n| Processes: |\n|===|\n| 3 / 77 work {} |\n",
        "brsmi": "| Driver Version: 1.2 |\n+---+\n| Processes: |\n|===|\n| 3 0 77 work {} |\n",
        "mthreads-gmi": "mthreads-gmi: 1.2 Driver Version: 3\nProcesses:\n 3 77 work {}\n",
        "nvidia-smi": "| NVIDIA-SMI 5  Driver Version: 5.1 |\n+---+\n"
        "| Processes: |\n|====|\n| 3 N/A N/A 77 C work {} |\n",
    }
    later = of_tools["nvidia-smi"].format("2031-07-19 23:58:51MiB")
    assert [row["memory_mib"] for row in parse_text("nvidia-smi", [], later)["processes"]] == [None]
    refused = "Unable to create a GPU instance on GPU  0 using profile {} In use by another client"
    for profile, blamed in (("14:", [14]), ("23:58:51", [])):
        found = parse_text("nvidia-smi", ["mig"], refused.format(profile))["blamed"]
        assert [each["profile_id"] for each in found] == blamed
    for tool, text in of_tools.items():
        (found,) = parse_text(tool, [], text.format("40 MiB"))["processes"]
        assert (found["pid"], found["memory_mib"]) == (77, 40), tool
        for row in parse_text(tool, [], text.format("Sat Jul 19 23:58:51 2031MiB"))["processes"]:
            assert row["memory_mib"] is None, tool


def test_of_a_chip_s_values_none_counts_where_there_are_too_many() -> None:
    table = (
        "| npu-smi 24.1 Version: 24.1 |\n| NPU  Name | Health | Power(W)  Temp(C) |\n"
        "| Chip | Bus-Id | AICore(%)  Memory-Usage(MB) |\n| 7  910 | OK | 65.5  30 |\n| 0 | 0000:02:00.0 | {} |\n"
    )
    for values, told in (("3  2563 / 15078", (15078, 2563)), ("3  2563 / 2031/07/19 23:58:51 15078", (None, None))):
        (found,) = parse_text("npu-smi", ["info"], table.format(values))["gpus"]
        assert (found["memory_total_mib"], found["memory_used_mib"]) == told
