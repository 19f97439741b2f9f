"""One file that shows views with the network off and no kernel.

Is: bundle + state + spans in one HTML file. Is not: a report writer. Invariants: the file asks for nothing (a content
policy in it forbids it), and nothing of a value can break out of its place: the state is base64 of gzip of JSON and bytes.

    state = u32 header_bytes | header (JSON; {"$bytes": [offset, length]} stands for binary) | binary, little-endian
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import file_path, instance, several
from ..errors import UsageError

if TYPE_CHECKING:
    from .view import View

_EXPORT = re.compile(r"export\{([\w$]+) as default\};?\s*$")
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def _pack(value: Any, blobs: list[bytes], at: list[int]) -> Any:
    """`value` with every bytes object replaced by its place among the blobs."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        blob = bytes(value)
        place = [at[0], len(blob)]
        blobs.append(blob)
        at[0] += len(blob)
        return {"$bytes": place}
    if isinstance(value, dict):
        return {str(key): _pack(item, blobs, at) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_pack(item, blobs, at) for item in value]
    return value


def packed(documents: list[dict[str, Any]]) -> str:
    """Documents as one base64 text."""
    blobs: list[bytes] = []
    header = json.dumps(_pack(documents, blobs, [0]), separators=(",", ":")).encode()
    raw = struct.pack("<I", len(header)) + header + b"".join(blobs)
    return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()


def inline_script() -> str:
    """The bundle as a classic inline module that leaves its default export on the window."""
    from .view import BUNDLE

    text, count = _EXPORT.subn(r"globalThis.cclLab=\1;", BUNDLE.read_text(encoding="utf-8").rstrip())
    if count != 1:
        raise RuntimeError("the bundle does not end in one default export; run `npm run build` in widgets/")
    return text.replace("</script", "<\\/script")


def export_html(path: str | Path, views: Sequence[View | str | Any], title: str = "ccl_lab", *, text: str = "",
                plotly: bool = False) -> Path:  # fmt: skip
    """Writes `views` into one self-contained HTML file; it opens with the network off and stays interactive.

    views: widgets of this package, in order; a str is a heading or paragraph (plain text). text: a line under the title.
    plotly: also take plotly figures, which adds 4.8 MB of plotly to the file. Returns the path.
    Raises UsageError for a view that cannot be exported.
    """
    target = file_path(path)
    views = several(views, "views", "a list of widgets and texts")
    for what, value in (("title", title), ("text", text)):
        instance(value, what, str, "a text")
    documents: list[dict[str, Any]] = []
    parts: list[str] = []
    figures = 0
    for view in views:
        if isinstance(view, str):
            parts.append(f"<p class='prose'>{html.escape(view)}</p>")
        elif hasattr(view, "document"):
            parts.append(f"<div class='mount' data-document='{len(documents)}'></div>")
            documents.append(view.document())
        elif plotly and hasattr(view, "to_html"):
            parts.append(view.to_html(full_html=False, include_plotlyjs=figures == 0))
            figures += 1
        else:
            hint = (
                " Pass plotly=True to include plotly, or draw it with backend='native'."
                if hasattr(view, "to_html")
                else ""
            )
            raise UsageError(
                f"cannot export a {type(view).__name__}: expected a widget of ccl_lab.widgets.{hint}"
            )
    page = _PAGE.format(
        policy="" if figures else f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        title=html.escape(title),
        text=f"<p class='prose'>{html.escape(text)}</p>" if text else "",
        parts="\n".join(parts),
        data=packed(documents),
        script=inline_script(),
    )
    target.write_text(page, encoding="utf-8")
    return target


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --page: #fff; --ink: #1b1f24; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #15181c; --ink: #e6e9ec; }} }}
body {{ margin: 0 auto; max-width: 1500px; padding: 20px 24px 48px; background: var(--page); color: var(--ink);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
h1 {{ font-size: 22px; margin: 0 0 8px; font-weight: 650; }}
.prose {{ max-width: 80ch; margin: 10px 0; }}
.mount {{ margin: 10px 0 14px; }}
</style>
</head>
<body>
<h1>{title}</h1>
{text}
{parts}
<noscript>This page draws itself with JavaScript; nothing is loaded from elsewhere.</noscript>
<script type="text/plain" id="ccl-data">{data}</script>
<script type="module">
{script}
await globalThis.cclLab.mount(document.getElementById("ccl-data").textContent, document.querySelectorAll(".mount"));
</script>
</body>
</html>
"""
