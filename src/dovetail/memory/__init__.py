"""What a framework's memory allocator makes of a step's tensors: reserved bytes, fragmentation, retries."""
