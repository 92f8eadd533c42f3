"""Looking at the machine. What is tried is tried for real, with the code that a job would use."""
