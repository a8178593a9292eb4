"""What vendors' tools print, read: one module for each tool, pure functions from text to a reading."""
