"""The command `stemcache`: what an operator and a first user type."""
