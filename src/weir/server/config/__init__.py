"""The configuration: one typed tree, its sources, and the settings of each part."""
