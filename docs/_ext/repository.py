"""Links from pages to files of the repository that are no pages: the site shows them as names of files.

`[a script](../examples/hello.py)` is a link on the repository's web view. The site has no such file: there
the link's text is shown, with the path in brackets where the text does not say it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class FilesOfTheRepository(SphinxTransform):
    """Replaces links to existing files outside docs/. Links to what does not exist are left, and warn."""

    default_priority = 4  # before anything looks links up

    def apply(self, **kwargs: Any) -> None:
        here = Path(self.env.doc2path(self.env.docname)).parent
        for node in list(self.document.findall(self.refers)):
            target = str(node.get("reftarget") or node.get("refuri"))
            path = (here / target.partition("#")[0]).resolve()
            if not path.exists():
                path = path.with_name(f"{path.name}.md")  # a link to a page has lost its ending here
            if not path.exists() or not path.is_relative_to(ROOT) or path.is_relative_to(DOCS):
                continue
            name = str(path.relative_to(ROOT))
            text = node.astext()
            shown: list[nodes.Node] = [nodes.literal(name, name)]
            if text and name not in text and text not in name:
                shown = [nodes.Text(f"{text} ("), *shown, nodes.Text(")")]
            node.replace_self(shown)

    @staticmethod
    def refers(node: nodes.Node) -> bool:
        """Whether a node is a relative link."""
        if not isinstance(node, addnodes.pending_xref | addnodes.download_reference | nodes.reference):
            return False
        target = node.get("reftarget") or node.get("refuri") or ""
        return bool(target) and "://" not in target and not target.startswith(("#", "mailto:"))


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx of the transform."""
    app.add_transform(FilesOfTheRepository)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
