"""What may happen, and how often, for hypothesis to choose from. A failure is shown as its whole story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.faults.model.world import World

NODE = st.integers(0, 1)
ANY = st.integers(0, 11)
NETWORK = st.lists(st.sampled_from(["good", "drop", "lost", "twice", "late", "html"]), min_size=1, max_size=6)
ENGINE = st.lists(st.sampled_from(["good", "away", "lost", "refused"]), min_size=1, max_size=5)
SPEC = {
    "kind": st.sampled_from(["job", "training", "inference"]),
    "attempts": st.integers(1, 3),
    "lost": st.sampled_from(["wait", "wait", "reschedule", "fail"]),
    "cards": st.integers(0, 2),
    "program": st.sampled_from(["obeys", "obeys", "stubborn", "exits 0"]),
    "timeout": st.booleans(),
}
ORDERS = st.sampled_from(["stop", "sleep", "sleep", "wake", "wake", "reschedule", "delete", "force-delete"])


class Machine(RuleBasedStateMachine):
    """Ordinary life comes often, or nothing would ever be far enough on its way to be disturbed."""

    make: Callable[[], World] = staticmethod(World)
    rare = True

    def __init__(self) -> None:
        super().__init__()
        self.world = self.make()

    def teardown(self) -> None:
        try:
            if not self.world.watcher.broken:
                self.world.settle()
        finally:
            self.world.close()

    def do(self, name: str, **arguments: Any) -> None:
        self.world.do(name, **arguments)

    @rule(**SPEC)
    def submit(self, **spec: Any) -> None:
        self.do("submit", **spec)

    @rule(which=ANY, action=ORDERS)
    def order(self, which: int, action: str) -> None:
        self.do("order", which=which, action=action)

    @rule(beats=st.integers(1, 4))
    def life(self, beats: int) -> None:
        self.do("life", beats=beats)

    @rule(beats=st.integers(1, 2))
    def more_life(self, beats: int) -> None:
        self.do("life", beats=beats)

    @rule(node=NODE, part=st.sampled_from(["beat", "take", "poll", "reconcile", "late"]))
    def part(self, node: int, part: str) -> None:
        self.do(part, node=node)

    @rule(node=NODE, which=ANY)
    def step(self, node: int, which: int) -> None:
        self.do("step", node=node, which=which)

    @rule(which=ANY, code=st.sampled_from([0, 0, 1, 3, 137, 143]), told=st.booleans())
    def program_ends(self, which: int, code: int, told: bool) -> None:
        self.do("program_ends", which=which, code=code, told=told)

    @rule(node=NODE, after=st.integers(1, 25))
    def doom(self, node: int, after: int) -> None:
        self.do("doom", node=node, after=after)

    @rule(node=NODE)
    def kill_and_begin(self, node: int) -> None:
        self.do("kill", node=node, journal="kept")
        self.do("begin", node=node)

    @rule(node=NODE)
    def begin(self, node: int) -> None:
        self.do("begin", node=node)

    @rule(node=NODE, fates=NETWORK)
    def requests(self, node: int, fates: list[str]) -> None:
        self.do("fates", node=node, fates=fates)

    @rule(node=NODE, fates=ENGINE)
    def trouble(self, node: int, fates: list[str]) -> None:
        self.do("trouble", node=node, fates=fates)

    @rule(node=NODE, cut=st.booleans())
    def network(self, node: int, cut: bool) -> None:
        self.do("network", node=node, cut=cut)

    @rule(seconds=st.sampled_from([1.0, 12.0, 70.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.do("wait", seconds=seconds)

    @rule()
    def tick(self) -> None:
        self.do("tick")

    @rule(node=NODE, up=st.booleans())
    def engine(self, node: int, up: bool) -> None:
        self.do("engine_up" if up else "engine_down", node=node)

    @rule(node=NODE, off=st.sampled_from([-3600.0, 0.0, 7200.0]))
    def wall(self, node: int, off: float) -> None:
        self.do("wall", node=node, off=off)

    @rule(up=st.booleans())
    def server(self, up: bool) -> None:
        self.do("server", up=up)

    @rule(node=NODE)
    def reboot(self, node: int) -> None:
        self.do("reboot", node=node)

    @precondition(lambda self: self.rare)
    @rule(node=NODE, journal=st.sampled_from(["lost", "torn"]))
    def journal(self, node: int, journal: str) -> None:
        self.do("kill", node=node, journal=journal)
        self.do("begin", node=node)

    @precondition(lambda self: self.rare)
    @rule()
    def copy(self) -> None:
        self.do("copy")

    @precondition(lambda self: self.rare)
    @rule(heard=st.integers(0, 5))
    def put_back(self, heard: int) -> None:
        self.do("put_back")
        self.do("life", beats=heard)

    @precondition(lambda self: self.rare)
    @rule()
    def accept(self) -> None:
        self.do("accept")


def walk(runs: int, steps: int, make: Callable[[], World] = World, *, seed: int | None = None) -> None:
    """So many worlds with so many steps each. Raises Broken, with the story, where an invariant does not hold.

    Without a seed the same ones each time. A story is not made shorter: each try is a whole world; ``play`` it.
    """
    import hypothesis

    machine = type("Machine", (Machine,), {"make": staticmethod(make)})
    chosen = hypothesis.seed(seed)(machine) if seed is not None else machine
    run_state_machine_as_test(
        chosen,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            phases=[Phase.generate],
            deadline=None,
            database=None,
            derandomize=seed is None,
            print_blob=False,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
