"""Every exit code of the commands, and the test that reaches it by running the command.

Most of them are reached where the command's other behaviour is tested; the table names those tests, and a name
that is no test any more fails here. The rest is reached below.
"""

from __future__ import annotations

import ast
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.contract.live import AGENT, GOOD_KEY, SERVER, clean_environment, free_port, run
from tests.lab.process import wait_for

INTEGRATION = Path(__file__).parents[1]
OPERATOR = "cli/test_exit_codes.py"
CONTROL_PLANE = "server_core/test_command.py"
NODE = "agent_link/test_agent_command.py"
HERE = "contract/test_exit_codes.py"

REACHED: dict[tuple[str, int], tuple[str, str]] = {
    ("heterofleet", 0): (OPERATOR, "test_0_done"),
    ("heterofleet", 1): (OPERATOR, "test_1_the_answer_is_not_what_was_asked_for"),
    ("heterofleet", 2): (OPERATOR, "test_2_usage"),
    ("heterofleet", 3): (OPERATOR, "test_3_no_token"),
    ("heterofleet", 4): (OPERATOR, "test_4_nobody_listens"),
    ("heterofleet", 5): (OPERATOR, "test_5_not_found"),
    ("heterofleet", 6): (OPERATOR, "test_6_refused"),
    ("heterofleet", 7): (OPERATOR, "test_7_waited_long_enough"),
    ("heterofleet", 8): (OPERATOR, "test_8_declined"),
    ("heterofleet tasks run --follow", 124): (OPERATOR, "test_the_exit_code_of_a_followed_task"),
    ("heterofleet tasks run --follow", 70): (OPERATOR, "test_the_exit_code_of_a_followed_task"),
    ("heterofleet server", 0): (CONTROL_PLANE, "test_it_serves_and_ends_cleanly"),
    ("heterofleet server", 1): (CONTROL_PLANE, "test_tokens_are_made_listed_and_revoked"),
    ("heterofleet server token", 1): (HERE, "test_a_server_command_whose_output_is_lost_is_1"),
    ("heterofleet server", 2): (CONTROL_PLANE, "test_usage_is_2"),
    ("heterofleet server run", 69): (CONTROL_PLANE, "test_a_port_in_use_is_69"),
    ("heterofleet server migrate", 69): (CONTROL_PLANE, "test_a_database_server_that_is_away_is_69"),
    ("heterofleet server", 73): (CONTROL_PLANE, "test_state_that_cannot_be_written_is_73"),
    ("heterofleet server", 78): (CONTROL_PLANE, "test_wrong_settings_are_78"),
    ("heterofleet server config", 0): (CONTROL_PLANE, "test_config_shows_origins_and_hides_secrets"),
    ("heterofleet server config", 78): (CONTROL_PLANE, "test_config_shows_origins_and_hides_secrets"),
    ("heterofleet-agent", 0): (NODE, "test_run_until_a_signal"),
    ("heterofleet-agent", 1): (HERE, "test_an_agent_command_whose_output_is_lost_is_1"),
    ("heterofleet-agent", 2): (NODE, "test_wrong_usage_is_2"),
    ("heterofleet-agent", 73): (NODE, "test_a_state_folder_that_cannot_be_written_is_73"),
    ("heterofleet-agent", 78): (NODE, "test_wrong_settings_are_78"),
    ("heterofleet-agent status", 0): (NODE, "test_status_waits_until_the_server_has_heard_the_agent"),
    ("heterofleet-agent status", 1): (NODE, "test_status_of_a_refused_agent_is_1_and_says_why"),
    ("heterofleet-agent status", 3): (NODE, "test_status_where_no_agent_is_is_3"),
    ("heterofleet-agent config check", 0): (HERE, "test_good_settings_are_0"),
    ("heterofleet-agent config check", 78): (NODE, "test_wrong_settings_are_78"),
}
"""(command, exit code) -> (file below tests/integration, test)."""

NEVER = {
    ("heterofleet-agent", 69): "test_an_agent_waits_for_its_server_for_ever",
}
"""Codes of the common list that a command does not use, with the test that shows what it does instead."""


@pytest.mark.parametrize(("command", "code"), REACHED)
def test_the_test_that_reaches_it_is_there(command: str, code: int) -> None:
    file, name = REACHED[(command, code)]
    assert name in functions(INTEGRATION / file), f"{command} {code}: no {name} in {file}"


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_table_has_every_code_of_the_contract() -> None:
    codes = {
        program: {code for name, code in REACHED if name.startswith(program)} for program in ("heterofleet-agent",)
    }
    codes["heterofleet server"] = {code for name, code in REACHED if name.startswith("heterofleet server")}
    codes["heterofleet"] = {code for name, code in REACHED if name in ("heterofleet", "heterofleet tasks run --follow")}
    assert codes["heterofleet"] == {0, 1, 2, 3, 4, 5, 6, 7, 8, 70, 124}
    assert codes["heterofleet server"] == {0, 1, 2, 69, 73, 78}
    assert codes["heterofleet-agent"] | {69} == {0, 1, 2, 3, 69, 73, 78}
    assert set(NEVER.values()) <= set(functions(Path(__file__)))


def server_file(folder: Path, **settings: object) -> Path:
    path = folder / "server.yaml"
    path.write_text(
        json.dumps(
            {
                "state_dir": str(folder / "state"),
                "api_key": GOOD_KEY,
                "listen": f"127.0.0.1:{free_port()}",
                "doorbell_listen": "",
                **settings,
            }
        )
    )
    return path


def agent_file(folder: Path, **settings: object) -> Path:
    path = folder / "agent.yaml"
    known = {"state_dir": str(folder / "agent"), "api_key": GOOD_KEY, "docker_host": f"unix://{folder}/no.sock"}
    path.write_text(json.dumps({"server_url": f"http://127.0.0.1:{free_port()}", **known, **settings}))
    path.chmod(0o600)
    return path


def full_disk(*command: str) -> subprocess.CompletedProcess[str]:
    """The command with its standard output on a disk that is full."""
    with Path("/dev/full").open("w") as full:
        return subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=clean_environment()
        )


def test_a_server_command_whose_output_is_lost_is_1(tmp_path: Path) -> None:
    done = full_disk(SERVER, "server", "token", "list", "--config", str(server_file(tmp_path)))
    assert done.returncode == 1
    assert done.stderr == "heterofleet: the output cannot be written (No space left on device); it is not complete\n"


def test_an_agent_command_whose_output_is_lost_is_1(tmp_path: Path) -> None:
    done = full_disk(AGENT, "config", "--config", str(agent_file(tmp_path)))
    assert done.returncode == 1
    assert done.stderr == "the output cannot be written (No space left on device); it is not complete\n"


def test_good_settings_are_0(tmp_path: Path) -> None:
    file = agent_file(tmp_path)
    done = run(AGENT, "config", "check", "--config", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}: 4 settings, no fault\n", "")


def test_an_agent_waits_for_its_server_for_ever(tmp_path: Path) -> None:
    """No exit code 69: a node whose server is away goes on with its tasks and asks again."""
    file = agent_file(tmp_path)
    with subprocess.Popen(
        [AGENT, "run", "--config", str(file)], stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as agent:
        seen: dict[str, object] = {}

        def says_why() -> object:
            done = run(AGENT, "status", "--json", "--config", str(file))
            seen.update(json.loads(done.stdout) or {}, exit=done.returncode)
            return seen.get("last_error") is not None or "no error yet"

        try:
            wait_for("the agent has tried", says_why, 30)
            assert agent.poll() is None
            assert seen["exit"] == 1
            error = seen["last_error"]
            assert isinstance(error, dict)
            assert error["code"] == "unreachable"
            assert "Connection refused; is server_url right" in error["text"]
        finally:
            agent.send_signal(signal.SIGTERM)
            _, errors = agent.communicate(timeout=30)
    assert agent.returncode == 0, errors
