"""HeteroFleet: GPU work on a fleet of machines that nobody can dial into."""
