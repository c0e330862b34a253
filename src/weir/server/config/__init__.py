"""The configuration: one typed tree, where its values come from, and what each part gets of it."""
