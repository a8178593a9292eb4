from tests.integration.bad_input.table import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]
