"""What a real PyTorch training step allocates, read off fake tensors: the oracle for Dovetail's memory model."""
