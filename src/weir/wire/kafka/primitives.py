"""What Kafka's compiled codecs call at run time: varints, tagged sections, refusals."""

from struct import Struct

from weir.model.errors import WireError

#: The uuid that means none.
NO_UUID = bytes(16)

#: Elements of all arrays of one message, and its tagged fields, together. One takes at least a byte of the frame,
#: but some hundred bytes of memory and a microsecond; so a request of 100 MB would else become gigabytes, and
#: stall a broker for minutes. A client may trust its broker with more.
MAX_REQUEST_ELEMENTS = 1 << 17
MAX_RESPONSE_ELEMENTS = 1 << 20

#: Records shorter than this are copied behind their length: cheaper than one more buffer to write.
SMALL_RECORDS_BYTES = 512

#: The struct letter of every type of a fixed size.
FIXED = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}

#: The struct letter of the length before a string and the rest, in versions that are not flexible.
LENGTHS = {"string": "h", "bytes": "i", "records": "i", "array": "i"}

_MAX_UVARINT = 2**32 - 1
_MAX_HEADER_TAGS = 64
_U8 = Struct("<B").pack
_U16 = Struct("<H").pack
_U32 = Struct("<I").pack


def uvarint(number: int) -> bytes:
    """Seven bits per byte, the lowest first; all but the last byte have their high bit set."""
    if number < 0x80:
        return _U8(number)
    if number < 0x4000:
        return _U16(number & 0x7F | 0x80 | number << 1 & 0x7F00)
    if number < 0x200000:
        return _U32(number & 0x7F | number << 1 & 0x7F00 | number << 2 & 0x7F0000 | 0x8080)[:3]
    if number > _MAX_UVARINT:
        raise WireError(f"{number} is no unsigned varint of 32 bits")
    return _U16(number & 0x7F | number << 1 & 0x7F00 | 0x8080) + uvarint(number >> 14)


def more(data: memoryview, at: int, first: int) -> tuple[int, int]:
    """The unsigned varint whose first byte, its high bit set, was read just before `at`; and where it ends."""
    number = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number > _MAX_UVARINT:
                break
            return number, at
    raise WireError("an unsigned varint is longer than 32 bits")


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """The unsigned varint at `at`, and where it ends. IndexError where the bytes end before it does."""
    first = data[at]
    return (first, at + 1) if first < 0x80 else more(data, at + 1, first)


def skip_tags(data: memoryview, at: int, count: int) -> int:
    """Where so many tagged fields end that begin at `at`."""
    for _ in range(count):
        _tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def skip_section(data: memoryview, at: int) -> int:
    """Where a header's tagged section ends that begins at `at`."""
    count, at = read_uvarint(data, at)
    if count > _MAX_HEADER_TAGS:
        raise too_many("a header's tagged section")
    return skip_tags(data, at, count)


def null_refused(name: str) -> WireError:
    return WireError(f"{name} is null")


def no_uuid(name: str) -> WireError:
    return WireError(f"{name} has not the 16 bytes of a uuid")


def too_many(name: str) -> WireError:
    return WireError(f"{name} announces more elements than the bytes behind it can hold, or than are allowed")


def overrun(name: str) -> WireError:
    return WireError(f"{name} does not end where it should")


def size(letters: str) -> int:
    """Bytes of a run of fixed fields."""
    return Struct(">" + letters).size
