"""What `weir.runtime.interfaces` says of files, directories and locks, over every runtime."""

import asyncio

import pytest

from weir.model.errors import DiskError, FileLockedError, FileMissingError
from weir.runtime.interfaces import File
from weir.testing.world.drivers import ConformanceSite, on_every_runtime


async def new_file(place: ConformanceSite, name: str = "f", content: bytes = b"") -> File:
    file = await place.runtime.disk.open(f"{place.folder}/{name}", create=True)
    if content:
        await file.append([content])
    return file


async def content(place: ConformanceSite, name: str = "f") -> bytes:
    """A file's content, read through a descriptor of its own."""
    file = await place.runtime.disk.open(f"{place.folder}/{name}")
    data = await file.read_at(0, 1 << 20)
    await file.close()
    return data


# --- files --------------------------------------------------------------------------------------------------


@on_every_runtime
async def test_a_file_that_does_not_exist_is_missing_unless_created(place: ConformanceSite) -> None:
    disk = place.runtime.disk
    with pytest.raises(FileMissingError):
        await disk.open(f"{place.folder}/f")
    assert not await disk.exists(f"{place.folder}/f")
    file = await disk.open(f"{place.folder}/f", create=True)
    assert await disk.exists(f"{place.folder}/f")
    assert await file.size() == 0
    assert file.path == f"{place.folder}/f"
    await file.close()


@on_every_runtime
async def test_a_file_in_a_missing_directory_cannot_be_created(place: ConformanceSite) -> None:
    with pytest.raises(FileMissingError):
        await place.runtime.disk.open(f"{place.folder}/no/f", create=True)


@on_every_runtime
async def test_creating_a_file_that_exists_keeps_its_content(place: ConformanceSite) -> None:
    file = await new_file(place, content=b"kept")
    again = await new_file(place)
    assert await again.read_at(0, 10) == b"kept"
    assert await again.append([b"!"]) == 4
    await file.close()
    await again.close()
    assert await content(place) == b"kept!"


@on_every_runtime
async def test_buffers_of_every_kind_are_written_one_after_the_other(place: ConformanceSite) -> None:
    file = await new_file(place, content=b"0123456789")
    await file.write_at(2, [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""])
    assert await file.read_at(0, 100) == b"01abcdef89"
    await file.write_at(0, [])
    assert await file.size() == 10
    await file.close()


@on_every_runtime
async def test_more_buffers_than_the_system_takes_at_once_are_all_written(place: ConformanceSite) -> None:
    file = await new_file(place)
    pieces = [b"%06d" % i for i in range(5000)]
    await file.write_at(0, pieces, sync=True)
    assert await file.read_at(0, 1 << 20) == b"".join(pieces)
    await file.close()


@on_every_runtime
async def test_a_write_beyond_the_end_extends_the_file_with_zeros(place: ConformanceSite) -> None:
    file = await new_file(place, content=b"abc")
    await file.write_at(6, [b"xyz"])
    assert await file.size() == 9
    assert await file.read_at(0, 100) == b"abc\0\0\0xyz"
    await file.close()


@on_every_runtime
async def test_append_returns_where_the_first_byte_went(place: ConformanceSite) -> None:
    file = await new_file(place)
    assert await file.append([b"abc", b"de"]) == 0
    assert await file.append([b"fgh"], sync=True) == 5
    assert await file.append([]) == 8
    await file.write_at(20, [b"!"])
    assert await file.append([b"end"]) == 21
    await file.truncate(2)
    assert await file.append([b"z"]) == 2
    await file.preallocate(10)
    assert await file.append([b"z"]) == 10
    await file.close()


@on_every_runtime
async def test_appends_called_at_once_do_not_overlap(place: ConformanceSite) -> None:
    file = await new_file(place)
    offsets = await asyncio.gather(*[file.append([b"%04d" % i]) for i in range(50)])
    assert offsets == [4 * i for i in range(50)]
    assert await file.read_at(0, 1000) == b"".join(b"%04d" % i for i in range(50))
    await file.close()


@on_every_runtime
async def test_operations_on_one_file_run_in_the_order_in_which_they_were_called(place: ConformanceSite) -> None:
    file = await new_file(place)
    operations = []
    for i in range(20):
        operations += [file.write_at(0, [b"%02d" % i], sync=i % 5 == 0), file.read_at(0, 2)]
    results = await asyncio.gather(*operations, file.truncate(1), file.size(), file.preallocate(5), file.size())
    assert results[1:40:2] == [b"%02d" % i for i in range(20)]
    assert (results[41], results[43]) == (1, 5)
    await file.close()


@on_every_runtime
async def test_a_read_is_short_only_at_the_end_of_the_file(place: ConformanceSite) -> None:
    data = bytes(range(256)) * 4096
    file = await new_file(place, content=data)
    assert await file.read_at(0, len(data)) == data
    assert await file.read_at(1000, 50) == data[1000:1050]
    assert await file.read_at(len(data) - 3, 50) == data[-3:]
    assert await file.read_at(len(data), 50) == b""
    assert await file.read_at(len(data) + 5, 50) == b""
    assert await file.read_at(0, 0) == b""
    await file.close()


@on_every_runtime
async def test_what_one_descriptor_wrote_another_reads(place: ConformanceSite) -> None:
    file = await new_file(place)
    await file.write_at(0, [b"seen"])
    assert await content(place) == b"seen"
    await file.sync()
    assert await content(place) == b"seen"
    await file.close()


@on_every_runtime
async def test_truncate_cuts_or_extends_with_zeros(place: ConformanceSite) -> None:
    file = await new_file(place, content=b"abcdef")
    await file.truncate(3)
    assert await file.read_at(0, 10) == b"abc"
    await file.truncate(6)
    assert await file.read_at(0, 10) == b"abc\0\0\0"
    assert await file.size() == 6
    await file.close()


@on_every_runtime
async def test_preallocate_extends_with_zeros_and_never_shortens(place: ConformanceSite) -> None:
    file = await new_file(place, content=b"abc")
    await file.preallocate(10_000)
    assert await file.size() == 10_000
    assert await file.read_at(0, 20_000) == b"abc" + bytes(9997)
    await file.preallocate(100)
    assert await file.size() == 10_000
    await file.close()


@on_every_runtime
async def test_closing_a_file_twice_is_fine_and_using_it_is_not(place: ConformanceSite) -> None:
    file = await new_file(place, content=b"abc")
    await file.close()
    await file.close()
    with pytest.raises(DiskError):
        await file.read_at(0, 1)
    assert await content(place) == b"abc"


@on_every_runtime
async def test_closing_waits_for_what_was_called_before(place: ConformanceSite) -> None:
    file = await new_file(place)
    await asyncio.gather(*[file.append([b"%03d" % i]) for i in range(20)], file.close())
    assert await content(place) == b"".join(b"%03d" % i for i in range(20))


# --- directories --------------------------------------------------------------------------------------------


@on_every_runtime
async def test_directories_are_made_with_their_parents_and_may_exist(place: ConformanceSite) -> None:
    disk = place.runtime.disk
    await disk.make_dirs(f"{place.folder}/a/b/c")
    await disk.make_dirs(f"{place.folder}/a/b/c")
    await disk.make_dirs(f"{place.folder}/a")
    assert await disk.exists(f"{place.folder}/a/b/c")
    assert await disk.list(f"{place.folder}/a") == ["b"]


@on_every_runtime
async def test_a_list_has_the_names_of_files_and_directories_sorted(place: ConformanceSite) -> None:
    disk = place.runtime.disk
    for name in ("b", "c", "a"):
        await (await new_file(place, name)).close()
    await disk.make_dirs(f"{place.folder}/bb/deeper")
    assert await disk.list(place.folder) == ["a", "b", "bb", "c"]
    assert await disk.list(place.folder + "/") == ["a", "b", "bb", "c"]
    assert await disk.list(f"{place.folder}/bb/deeper") == []


@on_every_runtime
async def test_a_missing_directory_cannot_be_listed_or_synced(place: ConformanceSite) -> None:
    with pytest.raises(FileMissingError):
        await place.runtime.disk.list(f"{place.folder}/no")
    with pytest.raises(FileMissingError):
        await place.runtime.disk.sync_dir(f"{place.folder}/no")


@on_every_runtime
async def test_rename_replaces_what_had_the_name(place: ConformanceSite) -> None:
    disk = place.runtime.disk
    await (await new_file(place, "old", b"old")).close()
    new = await new_file(place, "new", b"new")
    await disk.rename(f"{place.folder}/new", f"{place.folder}/old")
    assert await disk.list(place.folder) == ["old"]
    assert await content(place, "old") == b"new"
    await new.append([b"er"])  # an open file stays the same file
    assert await content(place, "old") == b"newer"
    await new.close()


@on_every_runtime
async def test_a_file_may_be_renamed_into_another_directory(place: ConformanceSite) -> None:
    disk = place.runtime.disk
    await disk.make_dirs(f"{place.folder}/sub")
    await (await new_file(place, "f", b"moved")).close()
    await disk.rename(f"{place.folder}/f", f"{place.folder}/sub/g")
    assert await content(place, "sub/g") == b"moved"
    assert await disk.list(place.folder) == ["sub"]


@on_every_runtime
async def test_a_missing_file_cannot_be_renamed(place: ConformanceSite) -> None:
    with pytest.raises(FileMissingError):
        await place.runtime.disk.rename(f"{place.folder}/no", f"{place.folder}/f")


@on_every_runtime
async def test_files_and_empty_directories_can_be_removed(place: ConformanceSite) -> None:
    disk = place.runtime.disk
    await disk.make_dirs(f"{place.folder}/sub")
    await (await new_file(place, "sub/f")).close()
    with pytest.raises(DiskError):
        await disk.remove(f"{place.folder}/sub")
    await disk.remove(f"{place.folder}/sub/f")
    assert not await disk.exists(f"{place.folder}/sub/f")
    await disk.remove(f"{place.folder}/sub")
    assert await disk.list(place.folder) == []
    with pytest.raises(FileMissingError):
        await disk.remove(f"{place.folder}/sub")


@on_every_runtime
async def test_an_open_file_can_be_used_after_its_name_is_removed(place: ConformanceSite) -> None:
    file = await new_file(place, content=b"abc")
    await place.runtime.disk.remove(f"{place.folder}/f")
    await file.append([b"def"])
    assert await file.read_at(0, 10) == b"abcdef"
    await file.close()


@on_every_runtime
async def test_a_directory_can_be_synced(place: ConformanceSite) -> None:
    await (await new_file(place)).close()
    await place.runtime.disk.sync_dir(place.folder)
    assert await place.runtime.disk.list(place.folder) == ["f"]


@on_every_runtime
async def test_free_space_is_counted_in_bytes(place: ConformanceSite) -> None:
    assert await place.runtime.disk.free_bytes(place.folder) > 0


@on_every_runtime
async def test_a_directory_is_not_a_file(place: ConformanceSite) -> None:
    with pytest.raises(DiskError):
        await place.runtime.disk.open(place.folder, create=True)
    with pytest.raises(DiskError):
        await place.runtime.disk.open(place.folder)


# --- locks --------------------------------------------------------------------------------------------------


@on_every_runtime
async def test_a_lock_is_exclusive_until_released(place: ConformanceSite) -> None:
    disk = place.runtime.disk
    path = f"{place.folder}/lock"
    lock = await disk.lock(path)
    assert await disk.exists(path), "the file is created"
    with pytest.raises(FileLockedError):
        await disk.lock(path)
    await lock.release()
    await lock.release()
    again = await disk.lock(path)
    await again.release()


@on_every_runtime
async def test_locks_on_different_files_do_not_exclude_each_other(place: ConformanceSite) -> None:
    disk = place.runtime.disk
    one = await disk.lock(f"{place.folder}/one")
    other = await disk.lock(f"{place.folder}/other")
    await one.release()
    await other.release()
