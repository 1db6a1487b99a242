"""Sources of evidence, one module each: `collect(targets, budget)` gives data, or the reason why not."""
