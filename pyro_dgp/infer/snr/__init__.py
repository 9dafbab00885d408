"""Signal-to-noise ratios of gradients: draws, moments, profiles, and sweeps over K."""
