"""Dead letters: exactly-once delivery of given-up messages to their destination, and redrive to their origin."""
