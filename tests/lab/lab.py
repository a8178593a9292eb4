"""Bringing the whole lab up, looking at it, and taking it down."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional, Union

from tests.lab import daemon, engine, host, network, node_image, places, setup, ssh, stuck, task_image
from tests.lab.engine import docker
from tests.lab.node import Node
from tests.lab.process import LabError, Progress, run
from tests.lab.registry import Registry

DEFAULT_CARDS = 2
# One count for all, one per node in order, or by node name (others get the default).
CardsChoice = Union[int, Sequence[int], Mapping[str, int], None]


class Lab:
    """The lab that is up on this machine. There is one at most; every handle of it is the same."""

    host_address = places.HOST_ADDRESS
    task_image = task_image.NAME

    def __init__(self) -> None:
        self.registry = Registry()

    @classmethod
    def up(cls, nodes: int = 3, cards: CardsChoice = None, quiet: bool = False) -> Lab:
        """Bring up what is missing of ``nodes`` nodes, registry and task image; what runs is left alone.

        A node that exists is made anew only when ``cards`` names another number than it has. More nodes
        than asked for stay.
        """
        progress = Progress(quiet)
        with places.exclusive():
            host.ensure(progress)
            engine.ensure(progress)
            image = node_image.ensure(progress)
            ssh.ensure()
            network.ensure()
            lab = cls()
            with progress.step(f"{nodes} node(s), registry and task image"):
                jobs: list[Callable[[], None]] = [
                    lambda node=Node(index): _ensure_node(node, image, cards, progress)  # type: ignore[misc]
                    for index in range(1, nodes + 1)
                ]
                _side_by_side([lab._ensure_registry, *jobs])
        return lab

    @classmethod
    def attach(cls) -> Lab:
        """The lab that is up already; an error says so when there is none."""
        if engine.version() is None or not setup.existing():
            raise LabError("no lab is up on this machine: `python -m tests.lab up --nodes 3` brings it up")
        return cls()

    @property
    def nodes(self) -> list[Node]:
        """All nodes, or this user's share of them (``HF_LAB_NODES=4,5``: several people work on one lab)."""
        share = places.share()
        return [node for node in setup.existing() if share is None or node.index in share]

    def node(self, name: Union[str, int]) -> Node:
        """By name (``hf-node-2``) or place in the list (1 is the first)."""
        nodes = self.nodes
        if isinstance(name, int) and 1 <= name <= len(nodes):
            return nodes[name - 1]
        for node in nodes:
            if name in (node.name, str(node.index)):
                return node
        raise LabError(f"no node {name}; there are: {', '.join(n.name for n in nodes) or 'none'}")

    def make_node(self, index: int, release: str, cards: int = DEFAULT_CARDS, quiet: bool = False) -> Node:
        """A node of another Debian release beside those that are up; one with this number is made anew."""
        node, progress = Node(index), Progress(quiet)
        with places.exclusive():
            image = node_image.ensure(progress, release)
            with progress.step(f"{node.name} boots ({release})"):
                setup.remove(node)
                setup.create(node, image, cards)
                node.wait_until_booted()
        self.load_image([node])
        return node

    def remove_node(self, index: int) -> None:
        """Take one node away, with its engine's data."""
        with places.exclusive():
            setup.remove(Node(index))

    def load_image(self, nodes: Optional[Sequence[Node]] = None) -> None:
        """Put the task image into the nodes' engines again."""
        archive = task_image.image().archive(task_image.NAME)
        for node in nodes if nodes is not None else self.nodes:
            node.load_image(archive)

    def down(self, quiet: bool = False) -> None:
        """Leave nothing but the cache folder: no container, network, volume, process, rule or bridge."""
        progress = Progress(quiet)
        with places.exclusive():
            self._take_down(progress, with_images=False)
        progress.say(
            f"down; the cache stays: {places.cache()} and the engine's image {node_image.REPOSITORY} "
            "(`purge` removes both)"
        )

    def purge(self, quiet: bool = False) -> None:
        """``down``, and the node images and the cache folder as well."""
        progress = Progress(quiet)
        with places.exclusive():
            self._take_down(progress, with_images=True)
            if engine.started_by_lab():
                raise LabError(f"the lab's engine still runs for others, so {places.cache()} with its log stays")
            shutil.rmtree(places.cache(), ignore_errors=True)
        progress.say("down; nothing of the lab is left")

    def _take_down(self, progress: Progress, with_images: bool) -> None:
        stuck.release_all()
        for one in daemon.running():
            if one.name != "dockerd":  # the registry, and what demo and tests started beside it
                one.stop()
        if engine.version() is not None:
            nodes = setup.existing()
            with progress.step(f"removing {len(nodes)} node(s)"):
                _side_by_side([lambda node=node: setup.remove(node) for node in nodes])  # type: ignore[misc]
                for volume in docker("volume", "ls", "-q", "--filter", f"label={places.LABEL}").split():
                    run(["docker", "volume", "rm", "--force", volume], check=False)
            if with_images:
                node_image.forget()
            network.remove()
        engine.stop_if_ours(progress)
        if not engine.started_by_lab():
            shutil.rmtree(places.state(), ignore_errors=True)

    def status(self) -> dict[str, Any]:
        """What is there now, by asking the parts; the body of ``status -o json``."""
        version = engine.version()
        nodes = setup.existing() if version else []
        return {
            "state": "up" if nodes and self.registry.running else "partial" if nodes else "down",
            "cache": str(places.cache()),
            "engine": {"version": version, "started_by_lab": engine.started_by_lab()},
            "network": {
                "name": places.NETWORK,
                "subnet": places.SUBNET,
                "host_address": places.HOST_ADDRESS,
                "exists": bool(version) and network.exists(),
            },
            "registry": {
                "address": places.REGISTRY,
                "user": places.REGISTRY_USER,
                "password_file": str(self.registry.password_file),
                "running": self.registry.running,
            },
            "ssh_key": str(ssh.key()),
            "task_image": {"name": task_image.NAME, "registry": f"{places.REGISTRY}/{task_image.REGISTRY_NAME}"},
            "nodes": [_node_status(node) for node in nodes],
        }

    def _ensure_registry(self) -> None:
        if not self.registry.running:
            self.registry.ensure()
        self.registry.push(task_image.image(), task_image.REGISTRY_NAME)


def _ensure_node(node: Node, image: str, cards: CardsChoice, progress: Progress) -> None:
    wanted = _cards_of(node, cards)
    exists = any(other.index == node.index for other in setup.existing())
    if exists and wanted is not None and setup.card_count(node) != wanted:
        progress.say(f"{node.name}: made anew with {wanted} card(s)")
        setup.remove(node)
        exists = False
    with progress.step(f"{node.name} boots" if not exists else f"{node.name} was there"):
        if not exists:
            setup.create(node, image, DEFAULT_CARDS if wanted is None else wanted)
        elif not node.running:
            node.power_on(wait=False)
        node.wait_until_booted()
        if exists and not setup.is_current(node, image):
            progress.say(f"{node.name} was made by an older version of the lab: `down` and `up` make it anew")
        held = node.docker("images", "-q", "--no-trunc", task_image.NAME).stdout.strip()
        if held != task_image.image().id:
            node.load_image(task_image.image().archive(task_image.NAME))


def _cards_of(node: Node, cards: CardsChoice) -> Optional[int]:
    if cards is None or isinstance(cards, int):
        return cards
    if isinstance(cards, Mapping):
        return cards.get(node.name)
    return cards[node.index - 1] if node.index <= len(cards) else None


def _node_status(node: Node) -> dict[str, Any]:
    running = node.running
    booted = node.run(["systemctl", "is-system-running"], check=False).stdout.strip() if running else "off"
    return {
        "name": node.name,
        "address": node.address,
        "running": running,
        "systemd": booted,
        "network": "connected" if node.connected else "cut",
        "cards": setup.card_count(node),
    }


def _side_by_side(jobs: Sequence[Callable[[], None]]) -> None:
    """Run all to their end; the first failure is raised after that."""
    with ThreadPoolExecutor(max_workers=max(1, min(8, len(jobs)))) as pool:
        futures = [pool.submit(job) for job in jobs]
    for future in futures:
        future.result()
