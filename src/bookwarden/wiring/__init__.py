"""Construction of the adapters from the settings: the only package that knows both."""
