"""The vendors whose cards are read from their tools' plain tables: one module each, and what they share."""
