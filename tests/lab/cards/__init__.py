"""Cards without hardware: a state file, an NVML library, `nvidia-smi` and a Docker runtime that read it."""
