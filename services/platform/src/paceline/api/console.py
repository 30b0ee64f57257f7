"""The built console: files where they exist, index.html for the console's own routes."""

from pathlib import Path

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

IMMUTABLE = "public, max-age=31536000, immutable"  # Vite puts a content hash into these names
ASSETS = "assets"


def mount_console(app: FastAPI, path: Path) -> None:
    """Serve the folder `path` below `/`; the routes of the API come first. The console may be
    built later: files are looked up at each request."""
    root = path.resolve()

    @app.get("/{path:path}", include_in_schema=False)
    async def get_console(path: str, request: Request) -> Response:
        if path == "v1" or path.startswith("v1/"):
            raise HTTPException(404)
        found = find_file(root, path)
        if found is None:
            raise HTTPException(404)
        hashed = found.parent.name == ASSETS
        return FileResponse(found, headers={"Cache-Control": IMMUTABLE if hashed else "no-cache"})


def find_file(root: Path, path: str) -> Path | None:
    """The file for a request path inside `root`, index.html for a route, None for neither."""
    if "\0" in path:
        return None
    wanted = (root / path).resolve()
    try:
        if wanted.is_relative_to(root) and wanted.is_file():
            return wanted
    except OSError:  # a name longer than the file system allows
        return None
    # A missing script must be a 404: index.html in its place is a puzzle in the browser.
    is_route = "." not in path.rpartition("/")[2]
    index = root / "index.html"
    return index if is_route and index.is_file() else None
