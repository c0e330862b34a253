"""What Weir promises to Kafka's clients: all checkers of the Kafka scenario.

Each checker is one promise. The log is what the final reader found (CONTENT, MARKER); a transaction is committed,
aborted or open as its markers in the log say. What counts as what, exactly:
- A publish that failed or was never answered may be stored or not, also later; more than once only if its producer
  is a plain one.
- A commit of a position that failed without a word from the broker may take effect, also later, but not after a
  later generation of its group has committed.
- The end of a transaction that was not answered may be either; whatever it is, it is so for all of it.
"""

from weir.testing import log_checkers as logs
from weir.testing.checking import Checker
from weir.testing.kafka.checkers import contents, groups, transactions
from weir.testing.kafka.checkers import log as kafka_logs

CHECKERS: tuple[Checker, ...] = (
    logs.all_is_available_after_healing,
    logs.acknowledged_is_stored,
    logs.receipts_say_where,
    logs.stored_once,
    logs.producers_order_is_kept,
    kafka_logs.producers_can_go_on,
    kafka_logs.numbers_are_used_once,
    kafka_logs.offsets_are_dense,
    logs.what_was_seen_stays,
    kafka_logs.only_committed_is_read,
    kafka_logs.stable_offset_is_true,
    kafka_logs.readers_skip_nothing,
    transactions.transactions_are_atomic,
    transactions.processed_exactly_once,
    logs.delays_are_kept,
    transactions.delayed_follow_their_transaction,
    contents.deleted_is_not_served,
    contents.only_deleted_is_gone,
    contents.the_last_value_is_kept,
    contents.rows_stay_where_they_were,
    groups.positions_are_kept,
    groups.commits_are_of_their_generation,
    groups.one_owner_at_a_time,
    groups.what_is_owned_stays,
    groups.static_members_keep_their_share,
    groups.former_selves_are_fenced,
    groups.restarts_divide_nothing_anew,
    groups.groups_read_everything,
    kafka_logs.everything_is_seen_in_the_end,
)
