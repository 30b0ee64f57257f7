"""`python -m paceline.api.openapi [FILE]` writes the API's description, which is committed."""

import json
import sys
from pathlib import Path

from paceline.api.app import create_app
from paceline.api.services import Services, Streams
from paceline.api.settings import ApiSettings
from paceline.contracts.ids import new_id
from paceline.runtime.clock import SystemClock
from paceline.store import Database
from paceline.store.outbox_watch import OutboxWatch

PLACEHOLDER_URL = "postgresql+asyncpg://nobody@127.0.0.1:1/none"  # never connected to


def render_openapi() -> str:
    """Canonical text: two spaces, keys in the order of the routes, one newline at the end."""
    settings = ApiSettings(console_path=None)
    services = Services(
        settings=settings,
        database=Database(PLACEHOLDER_URL),
        clock=SystemClock(),
        new_id=new_id,
        watch=OutboxWatch(PLACEHOLDER_URL),
        streams=Streams(settings.streams_max),
        console_url="",
    )
    return json.dumps(create_app(services).openapi(), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    text = render_openapi()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
