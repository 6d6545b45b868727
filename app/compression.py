"""The page's own document, compressed: it carries every part's script, and some more than once."""

from __future__ import annotations

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


class CompressedPage:
    """Middleware: gzip for the document, which Gradio (6.31) leaves as it is because its path has no ending.

    Nothing else is touched: streams must not be held back, and files are compressed by Gradio.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.compressing = app, GZipMiddleware(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and scope["path"] in ("", "/")
        await (self.compressing if is_page else self.app)(scope, receive, send)
