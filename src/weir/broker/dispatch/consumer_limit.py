"""The limit on consumers per subscription, which all subscriptions of a broker share."""

import logging

from weir.model.errors import TooManyError

log = logging.getLogger(__name__)

#: Subscriptions that are remembered as logged: a client may ask again without end.
_MOST_LOGGED = 1000


class ConsumerLimit:
    """`most`: consumers per subscription; 0: any number."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        #: How many consumers were refused.
        self.refused = 0
        #: Subscriptions that the log has named.
        self._logged: dict[str, None] = {}

    def check(self, consumers: int, topic: str, subscription: str) -> None:
        """TooManyError if a subscription with so many consumers may not have one more."""
        if not 0 < self._most <= consumers:
            return
        self.refused += 1
        what = f"subscription {subscription!r} of {topic} has {consumers} consumers, as many as it may have"
        if topic + subscription not in self._logged:
            self._logged[topic + subscription] = None
            if len(self._logged) > _MOST_LOGGED:
                del self._logged[next(iter(self._logged))]
            log.warning("%s (limits.subscription_consumers)", what)
        raise TooManyError(what, hint="limits.subscription_consumers is the limit")
