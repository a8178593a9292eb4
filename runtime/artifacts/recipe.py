"""What each kind of build is made of: the agent's file for nodes, the server's file for a control plane's host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """``paths``: what of the tree goes in; ``heart``: what it is nothing without. ``lock`` pins the wheels of the
    extra ``extra`` for ``pythons``. ``launcher``: our own first lines in place of pex's, where a file needs them.
    """

    name: str
    paths: tuple[str, ...]
    heart: str
    lock: str
    extra: str
    pythons: tuple[str, ...]
    entry_point: str
    pex_options: tuple[str, ...]
    launcher: str | None = None
    whole_wheels: bool = False
    """Wheels lie in the file as they are; they are unpacked once, where it is installed."""

    @property
    def prefix(self) -> str:
        """What the names of such files begin with."""
        return f"heterofleet-{self.name}-"


AGENT = Recipe(
    name="agent",
    paths=("runtime/__init__.py", "runtime/protocol", "runtime/agent"),
    heart="runtime/agent/",
    lock="runtime/artifacts/agent-requirements.txt",
    extra="agent",
    pythons=("3.9", "3.10", "3.11", "3.12", "3.13", "3.14"),
    entry_point="runtime.agent.main:main",
    pex_options=("--venv",),
    launcher="runtime/artifacts/launcher.sh",
)

SERVER = Recipe(
    name="server",
    paths=(
        *("runtime/__init__.py", "runtime/protocol", "runtime/server", "runtime/cli", "runtime/artifacts"),
        # Beside the package, where scripts.templates_folder looks for them.
        "templates",
    ),
    heart="runtime/server/",
    lock="runtime/artifacts/server-requirements.txt",
    extra="server",
    pythons=("3.11", "3.12", "3.13", "3.14"),
    entry_point="runtime.cli.main:main",
    # Whoever installs it makes a virtual environment of it (PEX_TOOLS=1 FILE venv FOLDER), which no start has to
    # make anew and which the server's user cannot write.
    pex_options=("--include-tools", "--no-pre-install-wheels", "--no-compress"),
    whole_wheels=True,
)
