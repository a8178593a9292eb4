"""``heterofleet-agent doctor``: what is wrong with this node, and what to do about it.

Each module gathers the facts of one subject at the edge, with deadlines, and judges them in pure functions.
"""
