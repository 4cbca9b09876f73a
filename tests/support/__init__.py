"""What tests, demo and benchmarks share: running real hosts and looking for what they leave."""
