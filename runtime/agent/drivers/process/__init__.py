"""Plain processes instead of containers: as transient systemd units, or on a host without systemd by a supervisor."""
