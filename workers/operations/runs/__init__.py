"""Operations that the broker keeps: how they are begun, previewed and carried out; and the audit of what operators did."""
