"""Which task goes where: constraints, the decision over a snapshot, and the round that carries it out."""
