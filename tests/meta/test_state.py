"""The state machine and the watch tracker against simple models."""

from hypothesis import given, settings
from hypothesis import strategies as st

from weir.meta.interfaces import Change, Listing, Versioned
from weir.meta.key_space import KeySpace
from weir.meta.watch import RecentListings, WatchTracker
from weir.model.errors import MetaConflictError
from weir.testing.kinds import rounds

keys = st.sampled_from(["/a", "/a/1", "/a/2", "/b", "/b/1"])
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=3), st.none() | st.integers(0, 12)), max_size=40)


@given(changes)
def test_the_key_space_is_a_dictionary_whose_changes_are_numbered(
    steps: list[tuple[str, bytes | None, int | None]],
) -> None:
    state = KeySpace(history=6)
    model: dict[str, tuple[bytes, int]] = {}
    log: list[Change] = []
    for key, value, expect in steps:
        conflict = expect is not None and expect != model.get(key, (b"", 0))[1]
        try:
            change = state.delete(key, expect=expect) if value is None else state.put(key, value, expect=expect)
        except MetaConflictError:
            assert conflict
            continue
        assert not conflict
        if change is None:
            assert value is None
            assert key not in model
            continue
        log.append(change)
        assert change == Change(key, value, len(log))
        if value is None:
            del model[key]
        else:
            model[key] = (value, change.version)
    assert state.revision == len(log)
    for prefix in ("", "/a", "/a/", "/b/1", "/c"):
        assert state.under(prefix) == [Versioned(k, *model[k]) for k in sorted(model) if k.startswith(prefix)]
        for since in range(len(log) + 1):
            told = state.changes(prefix, after=since, upto=len(log))
            assert told in (None, [c for c in log[since:] if c.key.startswith(prefix)])
            assert told is not None or len(log) - since >= 6, "the last few are always remembered"


@settings(max_examples=rounds(200))
@given(changes, st.data())
def test_a_watch_converges_however_its_stream_breaks_repeats_and_loses_history(
    steps: list[tuple[str, bytes | None, int | None]], data: st.DataObject
) -> None:
    state = KeySpace(history=1000)
    for key, value, _ in steps[: len(steps) // 2]:
        _ = state.delete(key) if value is None else state.put(key, value)
    since = state.revision
    seen = {item.key: item.value for item in state.under("")}
    tracker = WatchTracker(since, list(seen))
    last = since
    for key, value, _ in steps[len(steps) // 2 :]:
        _ = state.delete(key) if value is None else state.put(key, value)
        event = data.draw(st.sampled_from(["wait", "stream", "repeat", "resync"]))
        if event == "resync":
            news = tracker.resync(Listing(state.under(""), state.revision))
        elif event == "wait":
            continue
        else:
            start = max(0, tracker.position - (2 if event == "repeat" else 0))
            told = state.changes("", after=start, upto=state.revision) or []
            news = [change for change in told if tracker.admit(change)]
            tracker.settle(state.revision)
        for change in news:
            assert change.version >= last, "versions never go back"
            last = change.version
            if change.value is None:
                seen.pop(change.key, None)
            else:
                seen[change.key] = change.value
        assert tracker.position == state.revision
        assert seen == {item.key: item.value for item in state.under("")}


def test_changes_of_one_revision_that_come_apart_are_told_once_each() -> None:
    tracker = WatchTracker(4, ["/a", "/b", "/c"])
    assert tracker.admit(Change("/a", None, 5))
    assert tracker.admit(Change("/b", None, 5))
    assert tracker.position == 4, "more of revision 5 may come, so it is asked for again"
    assert not tracker.admit(Change("/a", None, 5))
    assert tracker.admit(Change("/c", None, 5))
    tracker.settle(5)
    assert tracker.position == 5
    assert not tracker.admit(Change("/c", None, 5))


def test_a_resync_amid_a_revision_repeats_nothing_of_it() -> None:
    tracker = WatchTracker(4, [])
    assert tracker.admit(Change("/a", b"1", 5))
    news = tracker.resync(Listing([Versioned("/a", b"1", 5), Versioned("/b", b"2", 5)], 7))
    assert news == [Change("/b", b"2", 5)]
    assert tracker.position == 7


def test_only_the_latest_listing_of_a_few_prefixes_is_remembered() -> None:
    listings = RecentListings(prefixes=2)
    listings.remember("/a", Listing([Versioned("/a1", b"", 1)], 3))
    assert listings.keys("/a", 3) == ["/a1"]
    assert listings.keys("/a", 2) is None
    listings.remember("/a", Listing([], 4))
    assert listings.keys("/a", 3) is None
    listings.remember("/b", Listing([], 4))
    listings.remember("/c", Listing([], 4))
    assert listings.keys("/a", 4) is None
    assert listings.keys("/c", 4) == []


def test_a_history_of_large_values_is_bounded_by_their_bytes() -> None:
    state = KeySpace(history=100, history_bytes=1000)
    for n in range(50):
        state.put("/k", b"x" * 98)
        remembered = [since for since in range(n + 2) if state.changes("", after=since, upto=n + 1) is not None]
        assert len(remembered) - 1 in range(min(n + 1, 5), 11)
