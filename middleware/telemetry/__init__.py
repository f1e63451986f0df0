"""OpenTelemetry: each message's steps as spans of one trace and as figures. Imported only if `opentelemetry` is set.

`spans` has one method for each step that the rest of `middleware` reports (`runtime.Telemetry`); `figures` are the counters,
histograms and depths. Only OpenTelemetry's API is used: the application chooses the SDK, and without an SDK nothing is exported.
"""
