"""What clients carry for the server: receipt handles, recall handles and transaction ids, as text.

They outlive the broker that made them: whoever serves the queue later understands them.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from weir.model.errors import WireError

_RECEIPT = Struct(">BIQqI")
_PLACE = Struct(">BIqq")
_RECEIPT_TAG, _RECALL_TAG, _HALF_TAG = 1, 2, 3


class ReceiptHandle(NamedTuple):
    """One delivery of a message. `visible_ms`: when the message may be seen by others, as far as was known when
    the handle was made. `delivery`: a number that no other delivery of the message has."""

    partition: int
    offset: int
    visible_ms: int
    delivery: int

    def encode(self) -> str:
        return _text(_RECEIPT.pack(_RECEIPT_TAG, *self))


class PlaceHandle(NamedTuple):
    """The place of a message that waits in a queue's holding area, and its id."""

    partition: int
    ledger: int
    entry: int
    message_id: str

    def encode_recall(self) -> str:
        return self._encode(_RECALL_TAG)

    def encode_half(self) -> str:
        return self._encode(_HALF_TAG)

    def _encode(self, tag: int) -> str:
        return _text(_PLACE.pack(tag, self.partition, self.ledger, self.entry) + self.message_id.encode())


def receipt_of(text: str) -> ReceiptHandle:
    """WireError if it is none."""
    data = _data(text)
    try:
        tag, *fields = _RECEIPT.unpack(data)
    except struct_error:
        raise WireError("this is no receipt handle") from None
    if tag != _RECEIPT_TAG:
        raise WireError("this is no receipt handle")
    return ReceiptHandle(*fields)


def recall_of(text: str) -> PlaceHandle:
    return _place(text, _RECALL_TAG, "recall handle")


def half_of(text: str) -> PlaceHandle:
    return _place(text, _HALF_TAG, "transaction id")


def _place(text: str, wanted: int, what: str) -> PlaceHandle:
    data = _data(text)
    try:
        tag, partition, ledger, entry = _PLACE.unpack_from(data)
        message_id = data[_PLACE.size :].decode()
    except (struct_error, UnicodeDecodeError):
        raise WireError(f"this is no {what}") from None
    if tag != wanted:
        raise WireError(f"this is no {what}")
    return PlaceHandle(partition, ledger, entry, message_id)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


def _data(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text.encode("ascii"))
    except (Base64Error, ValueError):
        raise WireError("a handle is malformed") from None
