"""What can be done to a fleet: one row an action, with its playbook and the words for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Action:
    """``asks``: what a person agrees to before it begins, with ``{hosts}`` in it; None: nobody is asked.

    ``group``: the inventory's group whose hosts it is about.
    """

    name: str
    playbook: str
    group: str = "nodes"
    asks: str | None = None
    changes: bool = True


DEPLOY = Action("deploy", "deploy.yml")
UPGRADE = Action("upgrade", "upgrade.yml")
FORCE_UPGRADE = Action(
    "force-upgrade",
    "force_upgrade.yml",
    asks="Level {hosts} by force to the staged build, whatever is there now?",
)
ROLLBACK = Action("rollback", "rollback.yml", asks="Put {hosts} back to an earlier release?")
VERIFY = Action("verify", "verify.yml", changes=False)
UNINSTALL = Action("uninstall", "uninstall.yml", asks="Take the agent off {hosts}?")
CONTROL_PLANE = Action("control-plane", "control_plane.yml", group="control_plane")
