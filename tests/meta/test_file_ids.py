"""The id of a metadata file is found again from its records, whatever happened to its header."""

from hypothesis import given
from hypothesis import strategies as st

from weir.meta.survey import find_file_id
from weir.wire.metadata_log import HEADER_BYTES, LOG_MAGIC, FileHeader, decode_record, encode_header, encode_record

u64 = st.integers(0, 2**64 - 1)


def _file(file_id: int, records: int) -> bytes:
    data = encode_header(LOG_MAGIC, FileHeader(file_id, 1, 0))
    for number in range(records):
        data += encode_record(
            file_id, len(data), f"/k/{number}", b"v" * number, revision=number + 1, durable=number
        )
    return data


@given(u64, st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.integers(2, 20), st.data())
def test_two_whole_records_suffice(file_id: int, header: bytes, records: int, choose: st.DataObject) -> None:
    data = bytearray(header + _file(file_id, records)[HEADER_BYTES:])
    if records > 2:
        data[HEADER_BYTES + choose.draw(st.integers(8, 30))] ^= 1  # the first record is damaged, too
    found = find_file_id(bytes(data))
    assert found is not None
    last = bytes(data).rfind(b"\xabWMr")
    assert decode_record(bytes(data), last, found).revision == records


@given(u64, st.integers(0, 7), st.integers(0, 7), st.integers(1, 255))
def test_one_record_suffices_if_two_bytes_of_the_id_are_damaged(
    file_id: int, first: int, second: int, flipped: int
) -> None:
    data = bytearray(_file(file_id, 1))
    data[12 + first] ^= flipped
    data[12 + second] ^= 255
    found = find_file_id(bytes(data))
    assert found is not None
    assert decode_record(bytes(data), HEADER_BYTES, found).key == "/k/0"


@given(u64, st.binary(max_size=200))
def test_a_file_without_whole_records_has_no_id(file_id: int, rest: bytes) -> None:
    assert find_file_id(encode_header(LOG_MAGIC, FileHeader(file_id, 1, 0)) + rest) is None
