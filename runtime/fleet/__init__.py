"""``heterofleet fleet``: roll-outs to many nodes by the project's playbooks, run through ansible-runner.

``progress`` is what a run is, made from Ansible's events; ``summary`` what came of it; ``screen`` shows both; ``job``
runs Ansible in a private folder; ``conduct`` brings them together. Secrets are only ever paths here.
"""
