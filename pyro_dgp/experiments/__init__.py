"""The study: data sets, training runs, metrics and figures."""
