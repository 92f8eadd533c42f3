"""What all questions share: the command line, rank processes, turns, results, the machine."""
