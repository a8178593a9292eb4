"""The lab's fixtures, for the tests of the lab itself."""

from tests.lab.fixtures import lab, node

__all__ = ["lab", "node"]
