"""Why an answer is best: bottleneck, neighbours, marginal values, the smallest fix, differences between plans."""
