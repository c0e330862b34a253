"""Filters as RocketMQ's clients write them: by tags, or in SQL."""

from typing import Any

from weir.gateway.rocketmq.errors import Refused
from weir.model.filters import ALL_TAGS, MessageFilter
from weir.wire.rocketmq.proto import api


def filter_of(expression: Any) -> MessageFilter:
    """Nothing, and `*`, is everything."""
    match expression.type:
        case api.FilterType.SQL:
            if not expression.expression.strip():
                raise Refused(api.Code.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
            return MessageFilter(sql=expression.expression)
        case _:
            return MessageFilter(tags=expression.expression or ALL_TAGS)
