"""What clients learn from: data sets, partitions, the columnar store, and the shards that clients hold."""
