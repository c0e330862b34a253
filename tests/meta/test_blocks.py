"""Keys in blocks are a sorted dictionary, however few of them are open and however small they are."""

from hypothesis import given
from hypothesis import strategies as st

from weir.meta.embedded_recovery import LEASE_OF_THE_DEAD
from weir.meta.interfaces import Versioned
from weir.meta.key_space import KeySpace, SortedBlocks
from weir.wire.metadata_log import pack_block, unpack_block

keys = st.builds("/{}/{}".format, st.sampled_from("abc"), st.integers(0, 30))
steps = st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), max_size=150)


@given(steps, st.integers(2, 9))
def test_blocks_are_a_sorted_dictionary(changes: list[tuple[str, bytes | None]], max_keys: int) -> None:
    blocks = SortedBlocks((), open_blocks=2, max_keys=max_keys)
    model: dict[str, Versioned] = {}
    for version, (key, value) in enumerate(changes, 1):
        assert blocks.get(key) == model.get(key)
        if value is None:
            assert blocks.remove(key) == (model.pop(key, None) is not None)
        else:
            model[key] = Versioned(key, value, version)
            blocks.set(model[key])
    assert len(blocks) == len(model)
    for prefix in ("", "/a", "/b/", "/b/1", "/d"):
        expected = [model[key] for key in sorted(model) if key.startswith(prefix)]
        assert list(blocks.under(prefix)) == expected
        assert blocks.count(prefix) == len(expected)
        assert list(blocks.under(prefix, after="/b/15")) == [item for item in expected if item.key > "/b/15"]
    seen = [
        item for view in blocks.view() for item in view.items or unpack_block(view.packed or b"", Versioned)[0]
    ]
    assert seen == [model[key] for key in sorted(model)]


def test_a_view_stays_as_it_was() -> None:
    blocks = SortedBlocks((), open_blocks=2, max_keys=4)
    for n in range(40):
        blocks.set(Versioned(f"/{n:02d}", b"old", n))
    view = blocks.view()
    for n in range(40):
        blocks.set(Versioned(f"/{n:02d}", b"new", n))
    assert {item[1] for v in view for item in v.items or unpack_block(v.packed or b"", Versioned)[0]} == {b"old"}


def test_a_leased_key_in_a_packed_block_is_known_as_leased() -> None:
    state = KeySpace(revision=7)
    packed = pack_block([("/a", b"1", 3), ("/b", b"2", 4)], {"/b": None})
    items, leased = unpack_block(packed, Versioned)
    assert (items, leased) == ([Versioned("/a", b"1", 3), Versioned("/b", b"2", 4)], ["/b"])
    state.load_block("/a", packed, items=2, leased=leased, holder=LEASE_OF_THE_DEAD)
    assert [change.key for change in state.drop_lease(LEASE_OF_THE_DEAD)] == ["/b"]
    assert [item.key for item in state.under("")] == ["/a"]
