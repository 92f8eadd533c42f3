"""The checks: from what was seen to findings. Pure: nothing here looks at the machine."""
