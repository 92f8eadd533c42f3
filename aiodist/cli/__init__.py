"""The `aiodist` command.

main            finds the command, and turns errors into one line
commands/       a file for each command
parser, show    arguments; output that has arrived or says why not
seen, follow    a job looked at once; a job looked at again and again
keyboard        keys of commands that run on
offers          what a shell completes; `version`: what is installed
bench/          what `aiodist bench` and `benchmarks/` share
doctor/         what `aiodist doctor` looks at, a file for each topic; `examine` has their table
"""
