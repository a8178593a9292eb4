"""How a server process or command ends; 0 is well, 2 (usage) is click's."""

from __future__ import annotations

EXIT_FAULT = 1
EXIT_REFUSED = 6
"""As for the command line: what was asked for is not possible as things are."""
EXIT_DECLINED = 8
"""As for the command line: a question was not answered with yes."""
EXIT_UNAVAILABLE = 69
"""A port, or the database server, is not available."""
EXIT_CANNOT_WRITE = 73
"""State cannot be written."""
EXIT_CONFIGURATION = 78
