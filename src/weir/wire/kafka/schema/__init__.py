"""The table of Kafka's messages, one module per family of APIs."""

from weir.wire.kafka.schema import (
    cluster,
    configs,
    consumer,
    fetch,
    groups,
    offsets,
    produce,
    sasl,
    topics,
    transactions,
)
from weir.wire.kafka.schema.form import Api, Layout

_FAMILIES = (produce, fetch, topics, groups, offsets, transactions, configs, cluster, sasl)

#: Every API by its key, in the order of keys.
APIS: dict[int, Api] = {
    api.key: api for api in sorted((api for family in _FAMILIES for api in family.APIS), key=lambda api: api.key)
}

#: Every message by its name.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (*(one for api in APIS.values() for one in (api.request, api.response)), *consumer.LAYOUTS)
}
