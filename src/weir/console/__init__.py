"""The console: Weir in a browser, as pages made by the broker that is asked (docs/how-to/console.md,
docs/adr/0033)."""
