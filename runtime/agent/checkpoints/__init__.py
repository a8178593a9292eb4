"""Which checkpoint a training run can go on from: the newest one that is proven complete.

Self-contained: the standard library and nothing else, so it can be taken out and used alone. One call,
:func:`find_newest`, looks at a folder as a training program has left it, whatever has ended that program:

    look = find_newest("/data/run-7", framework="auto")
    look.found     # Checkpoint(path, framework, step), or None: start from scratch
    look.rejected  # newer candidates and what each lacks

Nothing is written, no link is followed, nothing is unpickled or imported, no pipe or device is opened, and what may be
read is bounded. A folder is trusted for nothing but its own names and sizes: whatever a file says leads to names inside
the folder, or to a refusal.
"""

from __future__ import annotations

from runtime.agent.checkpoints.find import FRAMEWORKS, find_newest
from runtime.agent.checkpoints.folder import Budget
from runtime.agent.checkpoints.verdict import Checkpoint, Look, Rejected

__all__ = ["FRAMEWORKS", "Budget", "Checkpoint", "Look", "Rejected", "find_newest"]
