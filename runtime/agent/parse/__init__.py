"""``heterofleet-agent parse``: what our own parsers make of a text that somebody pastes, as JSON."""
