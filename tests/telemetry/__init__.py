"""Traces and metrics that real SDKs in real workers send to OpenTelemetry, and what happens if they are off."""
