"""Bad input, one row a case: what comes of it, which sentence is said, and that nothing is lost or half done.

The rows that need nodes and a registry are in tests/e2e/test_bad_input.py; both end up in the table that is
printed at the end of the run.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import pytest

from tests.integration.bad_input.places import (
    agent_file,
    fill,
    page,
    redirect,
    running_agent_says,
    small_disk,
)
from tests.integration.bad_input.table import Seen, note
from tests.integration.contract.live import AGENT, GOOD_KEY, SERVER, Answer, Live, control_plane, free_port, run

TASKS = "/api/v1/tasks"


@dataclass(frozen=True)
class Row:
    """``answer``: the exit code or problem code; ``parts``: what the sentence must hold."""

    case: str
    act: Callable[[Path], Seen]
    answer: Union[int, str]
    parts: tuple[str, ...]


# -- settings and keys ------------------------------------------------------------------------------------------------


def server_file(folder: Path, **settings: Any) -> Path:
    path = folder / "server.yaml"
    known = {
        "state_dir": str(folder / "state"),
        "api_key": GOOD_KEY,
        "listen": f"127.0.0.1:{free_port()}",
        "doorbell_listen": "",
    }
    path.write_text(json.dumps({**known, **settings}))
    return path


def server_run(folder: Path, **settings: Any) -> Seen:
    """The control plane with these settings; it must end by itself, and say one thing."""
    done = run(SERVER, "server", "run", "--config", str(server_file(folder, **settings)))
    return Seen(done.returncode, said(done.stderr))


def said(errors: str) -> str:
    """The sentences without dates, levels and the line that the process has stopped."""
    kept = []
    for line in errors.splitlines():
        if line.endswith((": stopped", " starts")):
            continue
        kept.append(line.split(" ERROR runtime.server.run: ", 1)[-1])
    return " | ".join(kept)


def unknown_server_setting(folder: Path) -> Seen:
    seen = server_run(folder, listne="127.0.0.1:1")
    assert not (folder / "state").exists()
    return seen


def wrong_server_type(folder: Path) -> Seen:
    seen = server_run(folder, threads="many", metrics_public="perhaps")
    assert seen.sentence.count("found") == 2, "every fault at once"
    return seen


def agent_check(folder: Path, **settings: Any) -> Seen:
    done = run(AGENT, "run", "--config", str(agent_file(folder, **settings)))
    assert not (folder / "agent").exists()
    return Seen(done.returncode, said(done.stderr))


def unknown_agent_setting(folder: Path) -> Seen:
    return agent_check(folder, serverurl="http://127.0.0.1:1")


def wrong_agent_type(folder: Path) -> Seen:
    return agent_check(folder, workers="many", labels=3)


def wrong_nested_agent_setting(folder: Path) -> Seen:
    return agent_check(folder, hardware={"detekt": "all"})


def file_that_is_no_yaml(folder: Path) -> Seen:
    path = server_file(folder)
    path.write_text(f"api_key: {GOOD_KEY}\nlisten: [\n")
    done = run(SERVER, "server", "run", "--config", str(path))
    assert GOOD_KEY not in done.stderr
    return Seen(done.returncode, said(done.stderr))


def weak_key(folder: Path) -> Seen:
    seen = server_run(folder, api_key="changeme-changeme")
    assert "changeme-changeme" not in seen.sentence
    assert not (folder / "state").exists()
    return seen


def wrong_key(folder: Path) -> Seen:
    with control_plane("bad-key") as plane:
        code, status, log = running_agent_says(agent_file(folder, server_url=plane.url), "bad_api_key")
        assert code == 1
        assert status["registered"] is False
        assert Live(plane).operator("GET", "/api/v1/nodes").body["nodes"] == []
        assert GOOD_KEY not in log + plane.log.read_text()
    return Seen(status["last_error"]["code"], status["last_error"]["text"])


def plain_http_to_a_stranger(folder: Path) -> Seen:
    return agent_check(folder, server_url="http://fleet.example.com:3333")


# -- servers that are not there, or are something else -----------------------------------------------------------------


def unreachable_for_the_agent(folder: Path) -> Seen:
    code, status, _ = running_agent_says(
        agent_file(folder, server_url=f"http://127.0.0.1:{free_port()}"), "unreachable"
    )
    assert code == 1
    return Seen(status["last_error"]["code"], status["last_error"]["text"])


def operators_command(url: str) -> Seen:
    done = run(
        SERVER,
        "--server",
        url,
        "tasks",
        "run",
        "--image",
        "app:1",
        "--name",
        "a",
        env={"HETEROFLEET_TOKEN": "hft_none"},
    )
    assert done.stdout == ""
    return Seen(done.returncode, said(done.stderr))


def unreachable_for_the_operator(folder: Path) -> Seen:
    return operators_command(f"http://127.0.0.1:{free_port()}")


def web_page_for_the_agent(folder: Path) -> Seen:
    with page() as server:
        code, status, _ = running_agent_says(agent_file(folder, server_url=server.url), "unusable_answer")
    assert (code, status["registered"]) == (1, False)
    return Seen(status["last_error"]["code"], status["last_error"]["text"])


def web_page_for_the_operator(folder: Path) -> Seen:
    with page() as server:
        return operators_command(server.url)


def redirect_for_the_agent(folder: Path) -> Seen:
    with page() as target, redirect(f"{target.url}/login") as server:
        code, status, _ = running_agent_says(agent_file(folder, server_url=server.url), "unusable_answer")
        assert code == 1
        assert server.asked
        assert target.asked == [], "a redirect was followed with the key"
    return Seen(status["last_error"]["code"], status["last_error"]["text"])


def redirect_for_the_operator(folder: Path) -> Seen:
    with page() as target, redirect(f"{target.url}/login") as server:
        seen = operators_command(server.url)
        assert target.asked == [], "a redirect was followed with the token"
    return seen


# -- ports and databases ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def port_in_use(folder: Path) -> Seen:
    with taken_port() as listen:
        seen = server_run(folder, listen=listen)
    assert not (folder / "state").exists()
    return seen


def doorbell_port_in_use(folder: Path) -> Seen:
    with taken_port() as listen:
        seen = server_run(folder, doorbell_listen=listen)
    assert not (folder / "state").exists()
    return seen


def database_is_a_folder(folder: Path) -> Seen:
    (folder / "db").mkdir()
    seen = server_run(folder, database_url=f"sqlite:///{folder}/db")
    assert list((folder / "db").iterdir()) == []
    return seen


def database_folder_is_a_file(folder: Path) -> Seen:
    (folder / "plain").write_text("kept")
    seen = server_run(folder, database_url=f"sqlite:///{folder}/plain/hf.db")
    assert (folder / "plain").read_text() == "kept"
    return seen


def database_is_something_else(folder: Path) -> Seen:
    letter = "Dear colleagues, this is a letter and no database.\n" * 40
    (folder / "letter").write_text(letter)
    seen = server_run(folder, database_url=f"sqlite:///{folder}/letter")
    assert (folder / "letter").read_text() == letter
    return seen


def database_of_a_newer_release(folder: Path) -> Seen:
    file = folder / "newer.db"
    url = f"sqlite:///{file}"
    assert run(SERVER, "server", "migrate", "--config", str(server_file(folder, database_url=url))).returncode == 0
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.execute("UPDATE control_plane SET release = '9.4.0'")
        database.commit()
        before = database.execute("SELECT sql FROM sqlite_master").fetchall()
    seen = server_run(folder, database_url=url)
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT sql FROM sqlite_master").fetchall() == before
    return seen


def database_without_a_table(folder: Path) -> Seen:
    file = folder / "torn.db"
    url = f"sqlite:///{file}"
    assert run(SERVER, "server", "migrate", "--config", str(server_file(folder, database_url=url))).returncode == 0
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("DROP TABLE control_plane")
        database.commit()
    return server_run(folder, database_url=url)


def database_on_a_full_disk(folder: Path) -> Seen:
    with small_disk(folder / "small", "1m") as disk:
        ballast = fill(disk)
        seen = server_run(folder, database_url=f"sqlite:///{disk}/hf.db")
        ballast.unlink()
        settings = server_file(folder, database_url=f"sqlite:///{disk}/hf.db")
        again = run(SERVER, "server", "migrate", "--config", str(settings))
        assert again.returncode == 0, again.stderr
    return seen


def database_server_is_away(folder: Path) -> Seen:
    seen = server_run(folder, database_url=f"postgresql://hf:hushhush@127.0.0.1:{free_port()}/hf")
    assert "hushhush" not in seen.sentence
    return seen


def state_on_a_full_disk(folder: Path) -> Seen:
    """The agent's own folder: it ends before it has taken an identity, and takes one when there is space."""
    file = agent_file(folder, state_dir=str(folder / "small"))
    with small_disk(folder / "small", "64k") as disk:
        ballast = fill(disk)
        done = run(AGENT, "run", "--config", str(file))
        assert [path.name for path in disk.iterdir() if path.is_file() and path.stat().st_size] == ["ballast"]
        ballast.unlink()
    return Seen(done.returncode, said(done.stderr))


def used_state_on_a_full_disk(folder: Path) -> Seen:
    """An agent with a journal is started on a full disk: what it remembers is not set aside."""
    file = agent_file(folder, state_dir=str(folder / "small"))
    with small_disk(folder / "small", "1m") as disk:
        running_agent_says(file, "unreachable")
        before = json.loads((disk / "identity.json").read_text())
        ballast = fill(disk)
        done = run(AGENT, "run", "--config", str(file))
        assert [path.name for path in disk.glob("*broken*")] == []
        ballast.unlink()
        running_agent_says(file, "unreachable")
        after = json.loads((disk / "identity.json").read_text())
        assert after["instance_id"] == before["instance_id"]
        assert after["run"] > before["run"]
    return Seen(done.returncode, said(done.stderr))


# -- bodies -----------------------------------------------------------------------------------------------------------


def refused(send: Callable[[Live], Answer]) -> Seen:
    """One request to a running control plane: refused, and no task has come of it."""
    with control_plane("bad-body") as plane:
        live = Live(plane)
        answer = send(live)
        assert live.operator("GET", TASKS).body["tasks"] == []
        assert answer.code is not None, answer.raw
        return Seen(answer.code, answer.body["detail"])


def malformed_body(folder: Path) -> Seen:
    return refused(lambda live: live.operator("POST", TASKS, b'{"name": "a", "image": "app:1"'))


def unknown_member(folder: Path) -> Seen:
    return refused(lambda live: live.operator("POST", TASKS, {"name": "a", "image": "app:1", "volums": []}))


def wrong_member_type(folder: Path) -> Seen:
    return refused(lambda live: live.operator("POST", TASKS, {"name": "a", "image": "app:1", "gpus": {"count": "two"}}))


BIG = b'{"name": "a", "image": "app:1", "env": {"A": "' + b"a" * (9 << 20) + b'"}}'


def body_over_the_limit(folder: Path) -> Seen:
    return refused(lambda live: live.operator("POST", TASKS, BIG))


def chunked_body_over_the_limit(folder: Path) -> Seen:
    def send(live: Live) -> Answer:
        import http.client
        from urllib.parse import urlsplit

        connection = http.client.HTTPConnection(urlsplit(live.url).netloc, timeout=30)
        headers = {"Authorization": f"Bearer {live.token()}", "Content-Type": "application/json"}
        pieces = (BIG[start : start + 65536] for start in range(0, len(BIG), 65536))
        connection.request("POST", TASKS, pieces, headers, encode_chunked=True)
        answer = connection.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return found

    return refused(send)


# -- a disk that fills up under a running control plane ----------------------------------------------------------------


def disk_that_fills_up(folder: Path) -> Seen:
    """Every 2xx before is kept, what cannot be written is refused, and it works again when there is space."""
    with (
        small_disk(folder / "small", "6m") as disk,
        control_plane("bad-disk", database_url=f"sqlite:///{disk}/hf.db") as plane,
    ):
        live = Live(plane)
        node = live.node("witness")
        stored: list[str] = []

        def create() -> Answer:
            task_id = f"t-{uuid.uuid4().hex[:12]}"
            body = {"id": task_id, "name": task_id, "image": "app:1", "labels": {"x": "y"}, "env": {"A": "a" * 20_000}}
            answer = live.operator("POST", TASKS, body)
            if answer.status == 201:
                stored.append(task_id)
            else:
                assert live.operator("GET", f"{TASKS}/{task_id}").code == "task_not_found"
            return answer

        for _ in range(5):
            assert create().status == 201
        ballast = fill(disk)
        # The journal file may have some room of its own: it takes a few before it must grow.
        answer = next((found for found in (create() for _ in range(400)) if found.status != 201), None)
        assert answer is not None, "the disk never was full"
        assert answer.status == 503
        assert answer.headers["retry-after"].isdigit()
        # What only reads goes on, and a beat needs no disk.
        for task_id in stored:
            assert live.operator("GET", f"{TASKS}/{task_id}").status == 200
        assert node.beat()[0] == 200
        ballast.unlink()
        assert create().status == 201
        plane.kill()
        plane.start()
        for task_id in stored:
            assert live.operator("GET", f"{TASKS}/{task_id}").status == 200
        assert len(live.operator("GET", f"{TASKS}?limit=1000").body["tasks"]) == len(stored)
    assert answer.code is not None
    return Seen(answer.code, answer.body["detail"])


ROWS = (
    Row(
        "unknown setting, server", unknown_server_setting, 78, ("listne: found an unknown setting", "nearest is listen")
    ),
    Row(
        "wrong type, server", wrong_server_type, 78, ("threads: found 'many'", "wanted a whole number", "true or false")
    ),
    Row("unknown setting, agent", unknown_agent_setting, 78, ("serverurl: found an unknown", "nearest is server_url")),
    Row(
        "unknown nested setting, agent",
        wrong_nested_agent_setting,
        78,
        ("hardware.detekt", "nearest is hardware.detect"),
    ),
    Row(
        "wrong type, agent",
        wrong_agent_type,
        78,
        ("workers: found 'many'", "labels: found 3", "a map of names to text"),
    ),
    Row(
        "settings file that is no YAML",
        file_that_is_no_yaml,
        78,
        ("server.yaml: found no YAML", "line 3", "a map of settings"),
    ),
    Row(
        "guessable key, production", weak_key, 78, ("api_key: found a known default", "wanted a random key", "make one")
    ),
    Row(
        "wrong key from an agent",
        wrong_key,
        "bad_api_key",
        ("system key", "not this server's", "give the agent the key"),
    ),
    Row(
        "plain http to a stranger", plain_http_to_a_stranger, 78, ("server_url: found plain http://", "wanted https://")
    ),
    Row(
        "unreachable server, agent",
        unreachable_for_the_agent,
        "unreachable",
        ("Connection refused", "server_url right"),
    ),
    Row("unreachable server, operator", unreachable_for_the_operator, 4, ("Connection refused",)),
    Row(
        "a web page answers, agent",
        web_page_for_the_agent,
        "unusable_answer",
        ("not JSON (text/html)", "check server_url"),
    ),
    Row("a web page answers, operator", web_page_for_the_operator, 4, ("is not a control plane",)),
    Row(
        "a redirect answers, agent",
        redirect_for_the_agent,
        "unusable_answer",
        ("points to", "/login", "set server_url"),
    ),
    Row("a redirect answers, operator", redirect_for_the_operator, 4, ("redirects to", "/login")),
    Row("port in use", port_in_use, 69, ("Address already in use", "stop what holds it, or set listen to another")),
    Row("doorbell port in use", doorbell_port_in_use, 69, ("Address already in use", "set doorbell_listen to another")),
    Row("database is a folder", database_is_a_folder, 73, ("cannot be written", "look at the file's owner")),
    Row(
        "database's folder is a file",
        database_folder_is_a_file,
        73,
        ("cannot be written", "set state_dir or database_url"),
    ),
    Row("database is another file", database_is_something_else, 78, ("not a database", "name another in database_url")),
    Row("database of a newer release", database_of_a_newer_release, 78, ("9.4.0", "schema 9999", "or a later one")),
    Row("database without its tables", database_without_a_table, 78, ("not a database of ours", "no such table")),
    Row("database on a full disk", database_on_a_full_disk, 73, ("cannot be written", "full", "free space")),
    Row("database server away", database_server_is_away, 69, ("does not take the connection", "check database_url")),
    Row("agent's used state on a full disk", used_state_on_a_full_disk, 73, ("state", "free some space")),
    Row(
        "agent's state on a full disk",
        state_on_a_full_disk,
        73,
        ("journal.db cannot be written", "is full", "free some space"),
    ),
    Row(
        "malformed body",
        malformed_body,
        "malformed_json",
        ("not JSON (EOF while parsing an object", "send one JSON object"),
    ),
    Row("unknown member of a body", unknown_member, "invalid_task", ("volums: found an unknown member", "volumes")),
    Row("wrong type in a body", wrong_member_type, "invalid_task", ("gpus.count: found 'two'", "integer")),
    Row("body over the limit", body_over_the_limit, "body_too_large", ("larger than 8 MiB", "raise max_body_mib")),
    Row(
        "body over the limit, in chunks",
        chunked_body_over_the_limit,
        "body_too_large",
        ("larger than 8 MiB", "raise max_body_mib"),
    ),
    Row(
        "server's disk fills up",
        disk_that_fills_up,
        "database_busy",
        ("disk of the server's database is full", "nothing of this change is stored", "free some space"),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.case.replace(" ", "-"))
def test_bad_input(row: Row, tmp_path: Path) -> None:
    seen = row.act(tmp_path)
    # The table is the same in every run: the test's own folder goes by a short name.
    note(row.case, Seen(seen.answer, seen.sentence.replace(str(tmp_path), "DIR")), row.answer, row.parts)
