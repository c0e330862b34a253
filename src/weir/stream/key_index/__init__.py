"""Where the messages of a key are in a stream: runs of hashes in ledgers of their own, merged as they grow."""
