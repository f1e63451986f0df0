"""What OpenTelemetry is told, by real SDKs in real workers, and what it costs where nobody asks for it."""
