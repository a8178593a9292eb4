"""Models on this node's disks: what lies there, whether it is whole, and when that was last looked at."""
