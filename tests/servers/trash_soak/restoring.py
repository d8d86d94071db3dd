"""A process that restores topics, to be killed: SETTINGS_FILE; a line of its input is a topic."""

from __future__ import annotations

import sys
from pathlib import Path

from bookwarden.config import load_settings
from bookwarden.ledgers.names import TopicName
from bookwarden.trash.plan import RestoreRequest
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.trash import TrashOperations


def main() -> None:
    """Restore each topic that is asked for, or finish what was begun."""
    with Cluster(load_settings(Path(sys.argv[1]))) as opened:
        operations = TrashOperations(opened, operator="soak")
        _say("ready")
        for line in sys.stdin:
            name = TopicName.parse(line.strip()).managed_ledger
            found = [one for one in operations.records.read().generations if one.managed_ledger == name]
            _say("begun")
            if not found:
                # All was done but the end of the journal.
                operations.restore.finish(lambda asked, name=name: asked == name)
                _say("ended, finished before")
                continue
            result = operations.restore.run(found[0], RestoreRequest())
            _say(f"ended, gone {result.gone}, problems {result.problems}, left {result.left}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
