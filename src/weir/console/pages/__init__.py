"""One module for each page: what it asks the admin API, and which template shows it."""
