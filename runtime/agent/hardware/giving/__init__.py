"""How cards of a vendor are given to a task: what a description says, what the host has, and what follows of both."""
