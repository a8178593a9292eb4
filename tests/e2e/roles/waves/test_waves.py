"""Roll-outs over nodes at work: bad builds stop at their wave, good ones arrive, cuts are made good, nothing restarts.

The tests go on from each other's fleet, in their order: a run over three hosts costs several seconds of CPU.
"""

from __future__ import annotations

import pytest

from tests.e2e.roles.waves.cuts import cut, wait_for_moment
from tests.e2e.roles.waves.site import TOOL, Site, outcomes, own_cordon

WHY = {
    "exits": "the agent ends whenever it is started",
    "silent": "confirmed no heartbeat",
    "wrong architecture": "is a build for arm64, and this host is x86_64",
    "flipped": "is not the build that was wanted",
}


@pytest.mark.parametrize("kind", WHY)
def test_a_bad_build_stops_at_its_wave(site: Site, kind: str) -> None:
    """What the controller can see itself stops before the first host; and at its wave, when it goes bad after that."""
    before, at_work = site.states(), site.containers()
    one, *others = site.ids()
    good, bad = site.current(site.nodes[0]), site.offer(kind)
    visible = kind in ("wrong architecture", "flipped")
    if visible:
        early = site.play("upgrade.yml", check=False)
        assert (early.rc != 0, early.changed) == (True, {})
        assert ("native files of another machine" if kind == "wrong architecture" else "sha256") in early.stdout
    played = site.play(site.unchecked() if visible else "upgrade.yml", check=False)
    assert played.rc != 0
    assert outcomes(played, site.ids()) == ["restored", "skipped", "skipped"]
    assert (played.outcomes[one]["from"], played.outcomes[one]["to"]) == (good, bad)
    assert {played.outcomes[name]["reason"] for name in others} == {f"an earlier wave did not come back well: {one}"}
    assert set(played.changed) <= {one}, "the other hosts are not touched"
    told = played.results("Say what came of every host")[0]["said"]["msg"]
    assert WHY[kind] in told
    assert "waves: 0 of 2 done; left: 1, 2" in told
    assert site.states() == before
    assert site.runs(good) == dict.fromkeys(site.ids(), True)
    assert [site.cordon(node_id) for node_id in site.ids()] == [None] * 3
    assert site.containers() == at_work


def test_an_upgrade_killed_at_the_link_switch_goes_on(site: Site) -> None:
    """Also: no cordon but our own is touched, and ours of before is gone in the end."""
    first, second, third = site.ids()
    at_work = site.containers()
    release = site.offer("newer")
    site.call(second, "cordon", reason="new fans")
    run = site.fleet.start("upgrade.yml")
    wait_for_moment(site.nodes[0], "link switch")
    cut(run, "kill", site.nodes)
    assert run.wait().rc != 0
    assert own_cordon(site, first), "whoever was cut short could not lift it"
    assert site.current(site.nodes[1]) != release

    played = site.play("upgrade.yml")
    assert site.runs(release) == dict.fromkeys(site.ids(), True)
    assert [site.cordon(first), site.cordon(third)] == [None, None]
    assert (site.cordon(second) or {})["reason"] == "new fans"
    codes = site.cordon_events(second)
    assert [reason for _, reason in codes if reason.startswith(TOOL)] == [], "a cordoned node is not cordoned again"
    assert [code for code, reason in site.cordon_events(third) if reason.startswith(TOOL)] == ["cordoned"]
    assert site.containers() == at_work
    assert outcomes(played, site.ids()) in (["changed"] * 3, ["unchanged", "changed", "changed"])
    site.free()

    again = site.play("upgrade.yml")
    assert (again.changed, outcomes(again, site.ids())) == ({}, ["unchanged"] * 3)


def test_forced_levelling_interrupted_before_the_first_beat_goes_on(site: Site) -> None:
    at_work = site.containers()
    release = site.offer("first")
    run = site.fleet.start("force_upgrade.yml")
    wait_for_moment(site.nodes[0], "first beat")
    cut(run, "interrupt", site.nodes)
    assert run.wait().rc != 0
    played = site.play("force_upgrade.yml")
    assert outcomes(played, site.ids()) == ["changed"] * 3
    assert site.runs(release) == dict.fromkeys(site.ids(), True)
    assert [site.cordon(node_id) for node_id in site.ids()] == [None] * 3
    assert site.containers() == at_work


def test_a_node_that_is_worse_than_before_goes_back(site: Site) -> None:
    """The node itself is content; the control plane misses a card that was well."""
    one = site.nodes[0]
    before, release = site.state(one), site.current(one)
    site.offer("newer")
    run = site.fleet.start("upgrade.yml", extra={"fleet_wave": [1]})
    wait_for_moment(one, "link switch")
    one.cards.lose(1)
    try:
        played = run.wait()
    finally:
        one.cards.reset()
    assert outcomes(played, site.ids()) == ["restored", "skipped", "skipped"]
    assert "cards that were well are not" in played.outcomes[one.name]["reason"]
    assert played.rc != 0
    assert (site.current(one), site.cordon(one.name)) == (release, None)
    settled = site.state(one)
    assert {path: settled.get(path) for path in before if "previous" not in path} == {
        path: what for path, what in before.items() if "previous" not in path
    }


def test_a_rollback_goes_one_way_and_all_results_arrive(site: Site) -> None:
    first = site.ids()[0]
    at_work = site.containers()
    here, there = site.current(site.nodes[1]), site.builds.release(site.kind("newer"))
    # As after a rollback that was cut short: one host is there already.
    played = site.play("rollback.yml", "--limit", first)
    assert played.outcomes == {first: {"result": "changed", "from": here, "to": there, "reason": ""}}
    assert "rollback: 1 changed" in played.stdout, "the summary comes with --limit, too"

    refused = site.play("rollback.yml", check=False)
    assert (refused.rc != 0, refused.changed) == (True, {})
    assert "others the opposite way" in refused.output

    played = site.play("rollback.yml", agent_release=there)
    assert outcomes(played, site.ids()) == ["unchanged", "changed", "changed"]
    assert site.runs(there) == dict.fromkeys(site.ids(), True)
    assert [site.cordon(node_id) for node_id in site.ids()] == [None] * 3
    assert site.containers() == at_work
    assert site.end_tasks() == site.wanted_results()
