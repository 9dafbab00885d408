"""The structure of a model and guide: which sites have K draws, one per datum, or one in all."""
