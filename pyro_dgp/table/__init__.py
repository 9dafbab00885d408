"""Tables in files: reading, reports on held-out rows, and the commands of ``pyro-dgp``."""
