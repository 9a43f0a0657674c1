"""What fits where: the size of a model's keys and values, and what follows from it. No torch, no weights."""
