"""InfiniBand and RoCE ports: what the kernel says of them below /sys/class/infiniband, and what tools print of it."""
