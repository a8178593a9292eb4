"""Detectors made of a description, with a tool that really runs: what it needs around it, and when it hangs."""

from __future__ import annotations

import time
from pathlib import Path

from runtime.agent.hardware.detectors import all_detectors
from runtime.agent.hardware.inventory import GpuSnapshot, Inventory
from runtime.agent.hardware.tools import ToolRunner

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
TABLE = CORPUS / "npu-smi" / "table_hbm_two_chips.txt"


def seen(tool: str, script: str, tmp_path: Path) -> GpuSnapshot:
    """One round of all detectors with a tool that runs ``script``."""
    path = tmp_path / tool
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    runner = ToolRunner(deadline_s=1.0)
    inventory = Inventory(all_detectors(runner, {tool: str(path)}), runner, node_id="node", state_dir=None)
    inventory.round()
    return inventory.snapshot()


def test_a_tool_finds_its_vendors_libraries(tmp_path: Path) -> None:
    needs = (
        'case ":$LD_LIBRARY_PATH:" in *:/usr/local/Ascend/driver/lib64:*) ;; *) echo no library >&2; exit 127;; esac'
    )
    snapshot = seen("npu-smi", f"{needs}\ncat '{TABLE}'", tmp_path)
    assert snapshot.collector_error is None
    assert [(gpu.vendor, gpu.index, gpu.gpu_class) for gpu in snapshot.gpus or []] == [
        ("ascend", index, "ascend-ascend999-64g") for index in (4, 5, 6)
    ]
    assert [failure.index for failure in snapshot.failures] == [5]


def test_a_tool_that_hangs_on_what_only_adds_has_cards_all_the_same(tmp_path: Path) -> None:
    started = time.monotonic()
    snapshot = seen("npu-smi", f"case \"$*\" in *board*) exec sleep 600;; esac\ncat '{TABLE}'", tmp_path)
    assert time.monotonic() - started < 20
    assert snapshot.collector_error is None and len(snapshot.gpus or []) == 3


def test_a_tool_that_hangs_is_a_failed_collection_and_no_virtual_card(tmp_path: Path) -> None:
    snapshot = seen("hy-smi", "exec sleep 600", tmp_path)
    assert snapshot.gpus is None
    assert snapshot.collector_error == "hy-smi did not answer in 1 s"


def test_a_tool_that_says_nothing_is_one_too(tmp_path: Path) -> None:
    snapshot = seen("hy-smi", "exit 3", tmp_path)
    assert (snapshot.gpus, snapshot.collector_error) == (None, "hy-smi ended with status 3 and no word")
