"""Who carries operations out. `base` says what a backend is; each folder is one."""
