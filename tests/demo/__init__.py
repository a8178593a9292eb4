"""The main job on real parts: `make demo`. A control plane, three hosts, and seven ways for a task to end."""
