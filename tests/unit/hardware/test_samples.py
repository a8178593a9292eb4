"""Every recorded output of a tool that looks at hardware, against what is right. Each is read by the parser of its
tool; a sample without a parser fails."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.agent.parse.registry import CARDS, parse_text
from tests.samples import FOLDER, Sample, differences, groups, samples, told

TEXTS_OF_TASKS = {"docker", "engines"}
"""Their verdicts are tested with the tasks."""

SAMPLES = samples(*(group for group in groups() if group not in TEXTS_OF_TASKS))


def said(sample: Sample) -> dict[str, Any]:
    """A reading of cards word for word; of what is no list of cards, what ``parse`` says."""
    if sample.tool not in CARDS or (sample.tool == "nvidia-smi" and "topo" in sample.arguments):
        return parse_text(sample.tool, list(sample.arguments), sample.text)
    return told(CARDS[sample.tool][1](list(sample.arguments), sample.text))


def named(expected: Any) -> Any:
    """What is right, in our words: the samples call an adapter a device, the contract ``hca``."""
    if isinstance(expected, list):
        return [named(entry) for entry in expected]
    if isinstance(expected, dict) and "link_layer" in expected:
        return {"hca" if key == "device" else key: value for key, value in expected.items()}
    return {key: named(value) for key, value in expected.items()} if isinstance(expected, dict) else expected


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.group}-{sample.name}")
def test_a_sample_is_read_right(sample: Sample) -> None:
    found = said(sample)
    assert differences(named(sample.expect), found) == []
    assert ("error" in sample.expect) == ("error" in found)


def test_all_files_of_all_folders_are_samples() -> None:
    outputs = {path for path in FOLDER.glob("*/*") if path.suffix != ".json"}
    assert len(outputs) == len(samples()) == len({(sample.group, sample.name) for sample in samples()})
    assert len(SAMPLES) == sum(path.parent.name not in TEXTS_OF_TASKS for path in outputs)


def test_a_difference_is_seen() -> None:
    right = {"cards": [{"index": 0, "memory_used_mib": 0, "health": None}], "devices": 1}
    assert differences(right, {**right, "more": 1}) == []
    for wrong in (
        {**right, "devices": None},
        {**right, "cards": []},
        {**right, "cards": [{"index": 0, "memory_used_mib": None}]},
        {**right, "cards": [{"index": 0, "memory_used_mib": False}]},
    ):
        assert len(differences(right, wrong)) == 1
