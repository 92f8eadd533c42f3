"""`aiodist dashboard`: a page that shows what a job does, served by a process of its own (law 8).

auth        the token, the session, where a request comes from; pure
door        connections that have no session yet
feed        looks at the job once a second, for all open pages
logs        the ranks' output
server      HTTP and server-sent events, on aiohttp; `run`: its life
static/     HTML, CSS, plain modules; there is no build step
"""
