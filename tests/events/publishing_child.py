"""A publisher in a process of its own, to be killed: `python -m tests.events.publishing_child URL SEED N_EVENTS`.

Says "at N" now and then, and at the end all blocks that its pools have, as JSON; then it waits for a line.
"""

import json
import sys
import time

from tenuto.events import Publisher, PublisherSettings, make_sender, parse_address
from tenuto.manager import inventory
from tests.events.events_rig import SHAPE, SOURCE, Life


def main(url: str, seed: int, n_events: int) -> None:
    life = Life(seed=seed)
    publisher = Publisher(
        make_sender(parse_address(url)),
        SOURCE,
        SHAPE,
        lambda: inventory({}, *life.tiers),
        PublisherSettings(idle_s=0.5),
    )
    publisher.start()
    told = 0
    while life.n_events < n_events:
        publisher.publish(life.step())
        if life.n_events - told > 1000:
            told = life.n_events
            print(f"at {told}", flush=True)
            time.sleep(0.005)
    truth = {tier.value: [key.hash.hex() for key in pool.registered(0, len(pool))] for tier, pool in life.tiers}
    print(json.dumps(truth), flush=True)
    sys.stdin.readline()
    publisher.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
