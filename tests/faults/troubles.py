"""What goes wrong at random: one thread a node and one for the control plane, each with one trouble at a time."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults import named_faults
from tests.faults.agent_process import UNIT
from tests.faults.fleet import Fleet, Place
from tests.faults.relay import Call, Fault

PAUSE_S = (0.5, 4.0)
SHARE = 0.3
"""Of the calls that a bad link or a bad engine spoils."""
LINK = (
    named_faults.DROP_REQUEST,
    named_faults.DROP_ANSWER,
    named_faults.DUPLICATE,
    named_faults.delay(1.0),
    named_faults.slow_answer(1.0),
    named_faults.cut(20),
    named_faults.BAD_GATEWAY,
    named_faults.NOT_FOUND_OF_A_PROXY,
    named_faults.SERVER_ERROR,
)
ENGINE = (
    named_faults.DROP_REQUEST,
    named_faults.DROP_ANSWER,
    named_faults.delay(1.0),
    named_faults.cut(20),
    named_faults.instead(500, '{"message":"the daemon is busy"}', "application/json"),
)


@dataclass
class Troubles:
    """``met`` counts what happened, by name; ``contact``: node to the uptime (s) of its last healed cut; ``errors``:
    what the troublemaker itself could not do."""

    fleet: Fleet
    seed: int
    met: Counter[str] = field(default_factory=Counter)
    contact: dict[str, float] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        subjects: list[Place | None] = [*self.fleet.places, None]
        self._threads = [threading.Thread(target=self._run, args=(one, index)) for index, one in enumerate(subjects)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Each trouble is healed when this returns."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.fleet.good()
        if self.errors:
            raise self.errors[0]

    def _run(self, place: Place | None, index: int) -> None:
        rng = random.Random(f"{self.seed}-{index}")
        while not self._over.wait(rng.uniform(*PAUSE_S)):
            try:
                if place is None:
                    self._server(rng)
                else:
                    name = rng.choices(list(NODE), [weight for weight, _ in NODE.values()])[0]
                    self.met[name] += 1
                    NODE[name][1](self, place, rng)
            except BaseException as error:
                self.errors.append(error)
                return

    def pause(self, rng: random.Random, least: float, most: float) -> None:
        """As long as a trouble takes; it is healed at once when all shall end."""
        self._over.wait(rng.uniform(least, most))

    def _server(self, rng: random.Random) -> None:
        self.pause(rng, 2, 10)
        if self._over.is_set():
            return
        how = rng.choice(("killed", "stopped"))
        self.met[f"control plane {how}"] += 1
        (self.fleet.plane.kill if how == "killed" else self.fleet.plane.stop)()
        self.pause(rng, 0, 4)
        self.fleet.plane.start()


def _spoil(share: float, faults: tuple[Fault, ...], rng: random.Random) -> Callable[[Call], Fault | None]:
    return lambda call: rng.choice(faults) if rng.random() < share else None


def _kill(troubles: Troubles, place: Place, rng: random.Random) -> None:
    place.agent.kill()


def _restart(troubles: Troubles, place: Place, rng: random.Random) -> None:
    place.node.run(["systemctl", "restart", UNIT])


def _link(troubles: Troubles, place: Place, rng: random.Random) -> None:
    place.server.rule = _spoil(SHARE / 2, LINK, rng)
    place.server.after = _spoil(SHARE / 2, LINK[1:2], rng)
    troubles.pause(rng, 2, 8)
    place.server.good()


def _engine(troubles: Troubles, place: Place, rng: random.Random) -> None:
    place.engine.rule = _spoil(SHARE / 2, ENGINE, rng)
    place.engine.after = _spoil(SHARE / 2, ENGINE[1:2], rng)
    troubles.pause(rng, 2, 6)
    place.engine.good()


def _frozen(troubles: Troubles, place: Place, rng: random.Random) -> None:
    place.node.freeze_engine()
    try:
        troubles.pause(rng, 2, 8)
    finally:
        place.node.thaw_engine()


def _engine_restart(troubles: Troubles, place: Place, rng: random.Random) -> None:
    place.node.restart_engine()


def _cut(troubles: Troubles, place: Place, rng: random.Random) -> None:
    place.node.cut_network(rng.choice(("drop", "disconnect")))
    try:
        troubles.pause(rng, 2, 22)
    finally:
        place.node.heal_network()
        troubles.contact[place.name] = time.clock_gettime(time.CLOCK_BOOTTIME)


def _power(troubles: Troubles, place: Place, rng: random.Random) -> None:
    place.node.power_cut()
    try:
        troubles.pause(rng, 0, 5)
    finally:
        place.node.power_on()


NODE: dict[str, tuple[int, Callable[[Troubles, Place, random.Random], None]]] = {
    "agent killed": (8, _kill),
    "agent restarted": (2, _restart),
    "bad link": (5, _link),
    "bad engine": (4, _engine),
    "engine frozen": (2, _frozen),
    "engine restarted": (1, _engine_restart),
    "network cut": (3, _cut),
    "power cut": (1, _power),
}
