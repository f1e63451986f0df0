"""The traces and metrics that real SDKs in real workers send to OpenTelemetry, and their cost if they are off."""
