"""Ten problems that jobs have, staged, and what aiodist says of each."""
