"""What the tests are made of: servers, workers, applications."""
