"""A small language model on hosts with slow cables between them: loss against time and bytes, by algorithm."""
