"""Pictures of a model's predictions, and a page about it."""
