"""Construction of the adapters from the settings: the only room that knows both."""
