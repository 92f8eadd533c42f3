"""`aiodist completion bash|zsh|fish`: prints what makes that shell complete the words of `aiodist`.

bash   eval "$(aiodist completion bash)"                                    in ~/.bashrc
zsh    eval "$(aiodist completion zsh)"                                     in ~/.zshrc, after compinit
fish   aiodist completion fish > ~/.config/fish/completions/aiodist.fish    once
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module

from aiodist.base.errors import AiodistError
from aiodist.cli.offers import Offer, offers
from aiodist.cli.parser import DESCRIBE, DescribedError, Parser
from aiodist.cli.show import show

# Where nothing is offered, each completes names of files. bash splits words at '=' and ':'.
SHELLS = {
    "bash": """\
_aiodist() {
  local IFS=$'\\n'
  COMPREPLY=($(aiodist completion --of bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
}
complete -o bashdefault -o default -F _aiodist aiodist""",
    "zsh": """\
#compdef aiodist
_aiodist() {
  local -a found
  found=("${(@f)$(aiodist completion --of zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n ${found[1]} ]]; then _describe aiodist found; else _files; fi
}
if [[ ${funcstack[1]} == _aiodist ]]; then _aiodist "$@"; else compdef _aiodist aiodist; fi""",
    "fish": """\
function __aiodist_complete
  set -l words (commandline -opc)[2..-1] (commandline -ct)
  set -l found (aiodist completion --of fish -- $words 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c aiodist -f -a '(__aiodist_complete)'""",
}


def main(argv: Sequence[str]) -> int:
    """Print a shell's script; or, for that script, what may stand in the place of the last word."""
    if argv[:1] == ["--of"] and len(argv) > 2:
        if found := list(_answer(argv[1], list(argv[3:]))):
            show("\n".join(found))
        return 0
    parser = Parser(
        "aiodist completion",
        description=__doc__,
        example="aiodist completion bash",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="whose words are completed")
    show(SHELLS[parser.parse_args(list(argv)).shell])
    return 0


def parser_of(command: str) -> Parser:
    """The parser of a command, which is not run."""
    try:
        import_module(f"aiodist.cli.commands.{command}").main([DESCRIBE])
    except DescribedError as described:
        return described.parser
    raise AssertionError(f"aiodist {command} parses no command line")


def _answer(shell: str, words: list[str]) -> Iterator[str]:
    """Lines as a shell reads them."""
    from aiodist.cli.main import COMMANDS

    cut = 0
    if shell == "bash":
        words, cut = _unsplit(words)
    for word, text in offers(words, COMMANDS, parser_of, _jobs):
        if shell == "zsh":
            escaped = word.replace(":", "\\:")
            yield f"{escaped}:{text}" if text else escaped
        else:
            yield f"{word}\t{text}" if shell == "fish" and text else word[cut:]


def _unsplit(words: Sequence[str]) -> tuple[list[str], int]:
    """bash's words, put together where it has split them → the words, and what stands before its last one."""
    whole: list[str] = []
    cut = 0
    for before, word in zip(["", *words], words, strict=False):
        if whole and (word in ("=", ":") or before in ("=", ":")):
            cut = len(whole[-1]) if word not in ("=", ":") else len(whole[-1]) + 1
            whole[-1] += word
        else:
            whole.append(word)
            cut = 0
    return whole, cut


def _jobs() -> Iterator[Offer]:
    """The jobs of this host: the names of their scripts, and the beginnings of their keys."""
    from aiodist.observe.choice import short_keys
    from aiodist.observe.host import read_jobs

    with suppress(AiodistError, OSError):
        jobs = read_jobs()
        keys = short_keys(jobs)
        for job in jobs:
            yield keys[job.key], job.name
        yield from {job.name: f"{job.name}, the newest" for job in jobs}.items()
