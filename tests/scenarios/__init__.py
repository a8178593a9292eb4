"""The lab's part of the molecule scenarios (molecule/): nodes, builds and a control plane for each.

    python -m tests.scenarios run [SCENARIO...]

A scenario works on nodes of the lab that is up, those that HF_LAB_NODES names; when none is up, the lab is brought up
for the run and goes down after it.
"""
