"""The `aiodist` command."""
