"""Authentication, authorization, tokens and cluster credentials."""
