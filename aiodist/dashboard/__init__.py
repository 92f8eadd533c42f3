"""`aiodist dashboard`: a page that shows what a job does, by a process of its own. It needs aiohttp."""
