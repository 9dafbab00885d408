"""One's own table: reading it, a report on held-out rows, and the commands that do so."""
