"""Replays public traces through the real block pool, without tensors, as fast as it can."""
