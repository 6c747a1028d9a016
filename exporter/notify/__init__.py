"""Messages to the chat services that Alertmanager does not know, by apprise. Called by :mod:`exporter.app`."""
