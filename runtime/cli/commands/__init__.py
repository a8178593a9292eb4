"""The commands that ask the control plane, a module a resource."""
