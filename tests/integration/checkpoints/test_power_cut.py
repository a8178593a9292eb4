"""A training task whose node loses power twice, on real parts: an agent under systemd, its engine, a power cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.checkpoints.conftest import FOLDER, Site
from tests.integration.waiting import until

TRAIN = Path(__file__).with_name("train.sh")
CUTS = (12, 17)
"""Steps in whose save the power goes. Steps 9 and 10 lie before: as texts they are in the wrong order."""
LAST = 20


@pytest.mark.case("FC-035")
def test_a_training_goes_on_from_its_newest_complete_checkpoint_after_each_power_cut(site: Site) -> None:
    """Power went in the middle of a save, twice: the highest folder is torn each time, and its third start ends it."""
    node = site.node
    node.put(f"{FOLDER}/train.sh", TRAIN.read_bytes(), 0o755)
    node.sh("touch " + " ".join(f"{FOLDER}/hold-{step}" for step in CUTS))
    body = {
        "id": "train", "name": "train", "kind": "training", "image": "hf-lab/task:1", "node_id": node.name,
        "command": ["/ck/train.sh", "/ck", str(LAST)], "checkpoint_path": "/ck",
        "volumes": [{"host": FOLDER, "container": "/ck", "read_only": False}],
    }  # fmt: skip
    status, answer = site.plane.request("POST", "/api/v1/tasks", body)
    assert status == 201, answer
    for step in CUTS:
        held = ["test", "-e", f"{FOLDER}/held-{step}"]
        until(
            f"the save of step {step} is under way", lambda held=held: node.run(held, check=False).returncode == 0, 60
        )
        node.power_cut()
        node.power_on()
    task = site.ended("train")
    assert (task["status"], task["exit_code"], task["starts"], task["max_attempts"]) == ("completed", 0, 3, 3)
    assert [attempt["reason"] for attempt in task["attempts"]][:2] == ["host_restarted"] * 2
    starts = ["begins from scratch", *(f"goes on from /ck/checkpoint-{cut - 1} at step {cut - 1}" for cut in CUTS)]
    assert node.sh(f"cat {FOLDER}/starts").splitlines() == starts
    first, *others = task["log_tail"].splitlines()
    assert first == starts[-1]
    assert others == [*(f"step {step}" for step in range(17, LAST + 1)), f"has ended at step {LAST}"]
    assert node.sh(f"grep -h -o 'step\": [0-9]*' {FOLDER}/checkpoint-*/trainer_state.json | wc -l") == str(LAST)

    events = site.plane.get("/api/v1/events?kind=checkpoint_resume&task=train")["events"]
    assert [(event["attempt"], event["code"]) for event in events] == [(1, "none"), (2, "found"), (3, "found")]
    for event, step in zip(events[1:], (11, 16)):
        assert f"goes on from /ck/checkpoint-{step} (transformers, step {step})" in event["detail"]
        assert f"rejected: /ck/checkpoint-{step + 1}: trainer_state.json is missing" in event["detail"]
    # A plain process is told the same: it sees the volume at the same place.
    process = {**body, "id": "plain", "driver": "process", "image": None, "command": ["/usr/bin/env"]}
    status, answer = site.plane.request("POST", "/api/v1/tasks", process)
    assert status == 201, answer
    plain = site.ended("plain")
    assert f"HETEROFLOW_RESUME_FROM_CHECKPOINT=/ck/checkpoint-{LAST}" in plain["log_tail"].splitlines(), plain

    for words in (("events", "--task", "train", "--kind", "checkpoint_resume"), ("tasks", "show", "train")):
        shown = " ".join(site.plane.cli(*words).stdout.split())
        assert "/ck/checkpoint-16" in shown and "trainer_state.json" in shown, shown
