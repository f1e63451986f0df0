"""Operations on the command line: `redelivery ops` and `audit`, and the options `--as`, `--why` and `--detach`."""
