"""What can be known of a model folder without torch: is it whole, is it supported, what are its digests."""
