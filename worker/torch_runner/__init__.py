"""The torch side of a worker: model loading, KV tensors, attention, sampling. The only package that knows torch."""
