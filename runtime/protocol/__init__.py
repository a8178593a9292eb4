"""What crosses the wire between agent, server and command line: standard library only, Python 3.9 and later.

Every body of the contract is a dataclass here, and nowhere else. The server validates with them, the agent
and the command line decode with :mod:`runtime.protocol.codec`, the OpenAPI document is made from them.
"""

PROTOCOL = 1
"""The protocol this release speaks."""

PROTOCOL_MIN = 1
"""The oldest protocol this release still understands."""
