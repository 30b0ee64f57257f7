"""Exit status 0 where this container's service says that it is ready; used by docker-compose.yml."""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def main() -> int:
    """Ask /readyz on the port of PACELINE_HTTP_PORT."""
    url = f"http://127.0.0.1:{os.environ.get('PACELINE_HTTP_PORT', '9464')}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return 0 if answer.status == 200 else 1
    except (urllib.error.URLError, OSError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
