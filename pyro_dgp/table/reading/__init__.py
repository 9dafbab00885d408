"""From a file to a table of typed columns."""
