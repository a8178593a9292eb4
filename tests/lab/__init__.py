"""A fleet on one machine, from real parts: systemd hosts with their own Docker Engine, a registry, cards.

Used from the command line (``python -m tests.lab up --nodes 3``) and as a library::

    from tests.lab import Lab
    lab = Lab.up(nodes=3)
    lab.nodes[0].run(["systemctl", "is-system-running"])

Only the standard library is needed to bring the lab up, so that it starts on a bare Debian 12 machine;
``Node.docker_client()`` alone imports docker-py.
"""

from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.process import LabError

__all__ = ["Lab", "LabError", "Node"]
