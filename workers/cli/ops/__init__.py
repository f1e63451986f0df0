"""Operations on the command line: `redelivery ops` and `audit`, and the options that say who does something and why."""
