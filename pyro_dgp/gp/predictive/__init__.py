"""Predictive distributions: mixtures over draws, their quantiles and scores, recalibration."""
