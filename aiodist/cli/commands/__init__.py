"""The commands, a file each: `main(argv)` returns the exit code. `cli.main.COMMANDS` is their table."""
