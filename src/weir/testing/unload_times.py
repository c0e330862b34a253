"""How soon brokers of a run unload topics that are not used."""

from random import Random


def unload_time(rng: Random) -> float:
    """In seconds. The dice of the plan are not moved on, so plans of former seeds stay as they are."""
    dice = Random()
    dice.setstate(rng.getstate())
    return dice.choice((0.4, 0.4, 300.0))
