"""Lists of topics: patterns, hashes, and what comes and goes."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.metadata.registry import Registry
from weir.broker.metadata.topic_lists import TopicListChange, TopicPattern, topics_hash
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import NamespaceNotFoundError, NotAllowedError
from weir.model.topics import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate


def topic(text: str) -> TopicName:
    return TopicName.parse(text)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("persistent://public/default/a.*", "abc", True),
        ("public/default/a.*", "abc", True),
        ("non-persistent://public/default/a.*", "abc", True),  # the domain is not part of what is matched
        ("public/default/a", "abc", False),
        ("default/a.*", "abc", False),
        ("public/default/abc", "abc-partition-4", True),
        ("public/default/(x|y)", "x", True),
    ],
)
def test_a_pattern_is_about_the_whole_name_without_domain_and_partition(
    pattern: str, name: str, matches: bool
) -> None:
    assert TopicPattern(pattern).matches(topic(name)) is matches


@pytest.mark.parametrize("pattern", ["(", "a{2000}", "x" * 513, "(?=look)", "[z-a]"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(NotAllowedError):
        TopicPattern(pattern)


def test_a_pattern_that_would_stall_a_backtracking_matcher_does_no_harm() -> None:
    assert not TopicPattern("public/default/(a+)+b").matches(topic("a" * 400))
    assert not TopicPattern("public/default/(a|aa)*(a|aa)*c").matches(topic("a" * 400))


def test_the_hash_is_the_one_that_pulsar_sends() -> None:
    # CRC32C's check value is e3069283 for "123456789"; Guava prints the lowest byte first.
    assert topics_hash(["123456789"]) == "839206e3"
    assert topics_hash([]) == "00000000"
    assert topics_hash(["b", "a"]) == topics_hash(["a,b"])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True))
def test_the_hash_does_not_depend_on_order(names: list[str]) -> None:
    assert topics_hash(names) == topics_hash(names[::-1])


def test_names_sort_as_in_java() -> None:
    # U+FF21 sorts before U+1F600 by code point, and behind its surrogates by UTF-16 unit.
    assert topics_hash(["\uff21", "\U0001f600"]) == topics_hash(["\U0001f600,\uff21"])


async def all_names(registry: Registry, **only: Any) -> list[TopicName]:
    return [name async for some in registry.topic_names(DEFAULT_NAMESPACE, **only) for name in some]


def test_a_listing_has_each_partition_and_follows_what_comes_and_goes() -> None:
    async def scenario(runtime: Runtime) -> None:
        core = MemoryCore(runtime.clock)
        one, other = (Registry(MemoryMeta(core, runtime), runtime) for _ in range(2))
        await one.start()
        await other.start()
        await one.topics.create(topic("a"), partitions=2)
        await one.topics.create(topic("b"))
        await one.topics.create(topic("non-persistent://public/default/a"))
        names = await all_names(one)
        assert [str(name).removeprefix("persistent://public/default/") for name in names] == [
            "non-persistent://public/default/a",
            "a-partition-0",
            "a-partition-1",
            "b",
        ]
        assert await all_names(one, domain=Domain.NON_PERSISTENT) == names[:1]
        assert await all_names(one, pattern="public/default/b") == [topic("b")]
        with pytest.raises(NamespaceNotFoundError):
            await anext(one.topic_names(NamespaceName("no", "where")))

        await runtime.clock.sleep(1)
        watch = await other.watch_topics(DEFAULT_NAMESPACE, pattern=".*/a.*", domain=Domain.PERSISTENT)
        assert watch.is_news
        assert watch.names == [topic("a").at(0), topic("a").at(1)]
        waiting = asyncio.ensure_future(watch.next())
        await one.topics.create(topic("c"))  # does not match
        await runtime.clock.sleep(1)
        assert not waiting.done()
        await one.topics.create(topic("aa"))
        assert await waiting == TopicListChange([topic("aa")], [], watch.hash)
        # Changes between two looks are merged.
        await one.delete_topic(topic("aa"))
        await one.topics.grow(topic("a"), 3)
        await one.topics.create(topic("aaa"))
        await one.delete_topic(topic("aaa"))
        await runtime.clock.sleep(1)
        change = await watch.next()
        assert (change.added, change.removed) == ([topic("a").at(2)], [topic("aa")])
        assert change.hash == topics_hash([str(topic("a").at(n)) for n in range(3)])

    async def main(world: World) -> None:
        await world.node("broker").start(scenario)

    simulate(1, main)


def test_a_watcher_that_has_the_list_already_need_not_get_it_again() -> None:
    async def scenario(runtime: Runtime) -> None:
        registry = Registry(MemoryMeta(MemoryCore(runtime.clock), runtime), runtime)
        await registry.start()
        await registry.topics.create(topic("a"))
        known = (await registry.watch_topics(DEFAULT_NAMESPACE)).hash
        assert not (await registry.watch_topics(DEFAULT_NAMESPACE, known_hash=known)).is_news
        await registry.topics.create(topic("b"))
        assert (await registry.watch_topics(DEFAULT_NAMESPACE, known_hash=known)).is_news

    async def main(world: World) -> None:
        await world.node("broker").start(scenario)

    simulate(1, main)
