"""OpenTelemetry: what becomes of each message, as spans of one trace and as figures. Imported where `opentelemetry` is set.

`spans` has one method for each step that the rest of `middleware` tells of (`runtime.Telemetry`); `figures` are the counters,
histograms and depths. Only OpenTelemetry's API is used: the process says which SDK takes what is told, and without one nothing is
taken.
"""
