"""Weir in pytest: a fixture with a broker of the test's own, whose clock the test can move (docs/pytest.md).

Found by pytest by its entry point, in every environment that has Weir: nothing here, and nothing that it imports,
loads more than the standard library before a test asks for a broker.
"""
