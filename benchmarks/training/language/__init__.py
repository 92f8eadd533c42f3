"""A small language model, trained over slow cables: loss against time and bytes, by algorithm."""
