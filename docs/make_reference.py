"""Writes reference.md: every public name with its signature and docstring.

python docs/make_reference.py
"""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiodist
import aiodist.testing

PAGE = Path(__file__).parent / "reference.md"
HEAD = """\
# Reference

Generated from the docstrings by `docs/make_reference.py`. In code, `import aiodist as dist`.

"Ranks" are the group's in methods of `ProcessGroup`, and global in the module-level calls. A call that gives
a `Work` says after → what awaiting it gives. Tensors are borrowed from the call until the Work is done.
"""


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


CLASSES = {
    "ProcessGroup": words(
        """
        all_reduce broadcast reduce all_gather reduce_scatter gather scatter all_to_all
        barrier monitored_barrier send recv
        all_gather_object gather_object broadcast_object scatter_object send_object
        recv_object recv_object_from
        coalesce empty new_group split drain issued_count statistics abort aclose
        check_rebuild rebuild shrink grow agree pending_joins newcomers_here
        """
    ),
    "Work": words("wait done result exception add_done_callback is_completed is_success synchronize"),
    "Store": words(
        """
        set get add append compare_set check wait delete_key multi_get multi_set list_keys num_keys
        gather barrier watch lease fence claim aclose
        """
    ),
    "TcpStore": ("connect",),
    "FileStore": ("open",),
    "Lease": ("set", "claim", "wait_lost"),
    "StoreServer": ("start", "aclose"),
    "GradientSync": ("ready", "finish"),
    "DistributedDataParallel": words("backward sync no_sync join register_comm_hook"),
    "Portal": ("call", "close"),
    "SyncWork": ("wait",),
}
"""The methods that users call, in the order of reading; classes that are not here show none."""

MADE_ELSEWHERE = {"SyncProcessGroup", "SyncWork", "GroupMember", *CLASSES} - {
    "GradientSync",
    "DistributedDataParallel",
    "Portal",
}

SECTIONS = {
    "Runtime": words(
        """
        init_process_group join destroy_process_group run is_available is_backend_available register_backend
        is_initialized is_torchelastic_launched get_node_local_rank
        """
    ),
    "ProcessGroup": words("ProcessGroup ReduceOp premul_sum"),
    "Work": ("Work",),
    "Module-level calls": words(
        """
        all_reduce broadcast reduce all_gather all_gather_into_tensor all_gather_single
        reduce_scatter reduce_scatter_tensor reduce_scatter_single gather scatter all_to_all all_to_all_single
        barrier monitored_barrier
        send recv isend irecv P2POp batch_isend_irecv
        all_gather_object gather_object broadcast_object_list scatter_object_list send_object_list
        recv_object_list
        new_group new_subgroups new_subgroups_by_enumeration split_group GroupMember
        get_rank get_world_size get_group_rank get_global_rank get_process_group_ranks
        get_backend get_pg_count
        """
    ),
    "Stores": words(
        "Store Lease TcpStore FileStore HashStore PrefixStore StoreServer register_rendezvous_handler"
    ),
    "Training": ("GradientSync", "DistributedDataParallel"),
    "Synchronous code": words("Portal SyncProcessGroup SyncWork"),
    "Errors": words(
        """
        AiodistError UsageError RendezvousError RendezvousTimeout AuthenticationError
        StoreReplaced StoreFull LeaseLost GroupClosed PeerClosed GroupBroken
        PeerLost CollectiveTimeout CollectiveMismatch GroupAborted Tampered Evicted ForgottenAwait
        QuorumLost WireError BackendUnavailable
        """
    ),
    "Testing": tuple(f"testing.{name}" for name in aiodist.testing.__all__),
}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            found = resolve(name)
            parts.extend(entry("###", name, found))
            for method in CLASSES.get(name, ()):
                parts.extend(entry("####", f"{name}.{method}", inspect.getattr_static(found, method)))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)) + "\n"


def resolve(dotted: str) -> Any:
    """The object that a name under aiodist names."""
    found: Any = aiodist
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


def entry(level: str, name: str, found: Any) -> Iterator[str]:
    """One name: heading, signature, docstring."""
    yield f"\n{level} {name}\n"
    if isinstance(found, classmethod | staticmethod):
        found = found.__func__
    if inspect.isclass(found) and issubclass(found, enum.Enum):
        yield ", ".join(f"`{member.name}`" for member in found) + "\n"
    elif shown := signature(name, found):
        yield f"```python\n{shown}\n```\n"
    yield from prose(inspect.getdoc(found) or "")


def signature(name: str, found: Any) -> str:
    """How it is called, one parameter a line where that is long; '' for what users do not make."""
    if name in MADE_ELSEWHERE:
        return ""
    if inspect.isclass(found) and issubclass(found, BaseException):
        return f"class {name.rpartition('.')[2]}({', '.join(base.__name__ for base in found.__bases__)})"
    own = inspect.signature(found)
    parameters = [each for each in own.parameters.values() if each.name not in ("self", "cls")]
    texts: list[str] = []
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        text = stars + each.name + ("" if each.annotation is each.empty else f": {each.annotation}")
        if each.default is not each.empty:
            text += f" = {value(each.default)}" if ": " in text else f"={value(each.default)}"
        texts.append(text)
    head = (
        "class " if inspect.isclass(found) else "async def " if is_async(found) else "def "
    ) + name.rpartition(".")[2]
    tail = (
        "" if inspect.isclass(found) or own.return_annotation is own.empty else f" -> {own.return_annotation}"
    )
    line = f"{head}({', '.join(texts)}){tail}"
    if len(line) <= 100:
        return line
    return f"{head}(\n" + "".join(f"    {text},\n" for text in texts) + f"){tail}"


def is_async(found: Any) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(found)


def value(default: Any) -> str:
    """A default as users write it."""
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    return f"np.{default.__name__}" if inspect.isclass(default) else repr(default)  # a dtype


def prose(doc: str) -> Iterator[str]:
    """A docstring as Markdown: indented blocks become lists where they describe names, else code."""
    blocks = re.findall(r"(?:^(?:    .*|)\n?)+|(?:^[^ \n].*\n?)+", doc + "\n", re.MULTILINE)
    for block in blocks:
        if not block.strip():
            continue
        if not block.startswith("    ") and not block.lstrip("\n").startswith("    "):
            head = re.sub(r"^([A-Z][\w ()]*):\n\Z", r"**\1:**", block)
            yield head.strip() + "\n"
            continue
        inside = textwrap.dedent(block).strip()
        if re.match(r"[\w*., ]+: ", inside):
            items = re.split(r"\n(?! )", inside)
            yield "\n".join(item_of(item) for item in items if item.strip()) + "\n"
        elif re.match(r"→|[A-Z]", inside) and "=" not in inside.split("\n")[0]:
            yield inside + "\n"
        else:
            yield f"```\n{inside}\n```\n"


def item_of(text: str) -> str:
    """'name: what it is', over several lines, as an item of a list."""
    name, _, rest = text.partition(": ")
    return f"- `{name}`: " + " ".join(line.strip() for line in rest.splitlines())


if __name__ == "__main__":
    PAGE.write_text(page())
