"""Steps of data-parallel training in torch: aiodist beside gloo."""
