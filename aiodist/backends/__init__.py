"""The backends, which carry operations out. `base` defines the interface; each folder is one backend."""
