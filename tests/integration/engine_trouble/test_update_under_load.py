"""The agent is replaced while it supervises containers, processes and pulls: none of them takes notice."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.artifacts.build import build
from tests.integration.agent_tasks.stub_registry import StubRegistry
from tests.integration.distribution.conftest import checkout, git
from tests.integration.engine_trouble.trouble import Trouble
from tests.integration.process.host import Host
from tests.integration.waiting import until
from tests.lab import places, task_image

SLOW = f"slow-{secrets.token_hex(4)}:1"
CONTAINERS, PROCESSES, PULLS = 20, 5, 2
FORM = "{{.Name}} {{.Id}} {{.State.StartedAt}} {{.State.Running}} {{.RestartCount}}"


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that the node does not have."""
    folder = tmp_path_factory.mktemp("newer")
    tree = checkout(folder / "tree")
    main = tree / "runtime" / "agent" / "main.py"
    main.write_text(main.read_text() + "# another build\n")
    git(tree, "commit", "--quiet", "--all", "--message", "another build")
    build(tree, folder / "out", ("amd64",), allow_dirty=False, progress=print)
    return folder / "out"


@pytest.fixture
def registries(trouble: Trouble) -> Iterator[list[StubRegistry]]:
    """Registries that stop half-way through each layer, until they are told to go on; the engine takes them."""
    made = [
        StubRegistry(
            task_image.image().plus({"etc/once": secrets.token_bytes(1 << 20)}),
            stall=True,
            at=(places.HOST_ADDRESS, places.port(4 + number)),
        )
        for number in range(PULLS)
    ]
    trouble.engine_settings(**{"insecure-registries": [places.REGISTRY, *(one.address for one in made)]})
    trouble.node.run(["systemctl", "reload", "docker"])
    yield made
    for one in made:
        one.__exit__()
        trouble.node.docker("rmi", "-f", f"{one.address}/{SLOW}", check=False)


def containers(trouble: Trouble) -> list[str]:
    """A line for each container of a task: id, start and whether it runs."""
    ids = trouble.node.docker("ps", "-aq", "--filter", "label=heterofleet.uid").stdout.split()
    return sorted(trouble.node.docker("inspect", "-f", FORM, *ids).stdout.splitlines())


def test_an_update_while_everything_is_under_way(trouble: Trouble, registries: list[StubRegistry], newer: Path) -> None:
    processes = Host(trouble.fleet)
    processes.offered("process", "docker")
    running = [trouble.submit("on-term", str(number), "forever") for number in range(CONTAINERS)]
    plain = [processes.submit("/bin/sleep", "1000", user="nobody") for _ in range(PROCESSES)]
    pulled = [trouble.submit("exit", "3", image=f"{one.address}/{SLOW}") for one in registries]

    def supervised() -> set[str]:
        return {entry["task_id"] for entry in trouble.status()["tasks"] if entry["phase"] in ("running", "pulling")}

    everything = {*running, *plain, *pulled}
    until("the agent supervises all", lambda: supervised() == everything, 300)
    until("both pulls stand half-way", lambda: all(one.stalled for one in registries))
    stalled = [one.stalled for one in registries]
    before, pids, agent = containers(trouble), [processes.pid(task_id) for task_id in plain], trouble.agent_pid()
    assert len(before) == CONTAINERS and all(pids)

    shutil.copytree(newer, trouble.fleet.plane.builds_dir, dirs_exist_ok=True)
    front = trouble.fleet.places[0].server.url
    trouble.node.run(["curl", "-fsSLo", "/root/update-agent-quick.sh", f"{front}/update-agent-quick.sh"])
    done = trouble.node.run(["sh", "/root/update-agent-quick.sh"], check=False, timeout=150)
    assert done.returncode == 0, done.stderr

    assert trouble.agent_pid() != agent
    until("the new agent supervises all", lambda: supervised() == everything)
    assert containers(trouble) == before
    assert [processes.pid(task_id) for task_id in plain] == pids
    assert [one.stalled for one in registries] == stalled, "the pulls went on: no layer was asked for again"
    for one in registries:
        one.release.set()
    assert [trouble.end(task_id) for task_id in pulled] == [("exited", 3)] * PULLS
    assert [one.stalled for one in registries] == stalled
    assert all(trouble.task(task_id)["attempt"] == 1 for task_id in everything)
    trouble.node.docker("kill", "--signal=TERM", *(line.split()[1] for line in before))
    assert [trouble.end(task_id) for task_id in running] == [("exited", number) for number in range(CONTAINERS)]
    for task_id in plain:
        processes.stop(task_id)
        assert trouble.end(task_id)[0] == "stopped_by_operator"
