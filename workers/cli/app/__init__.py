"""Commands about an app as a whole: `policy`, `adopt`, `doctor` and `leave`."""
