"""Operations that the broker keeps: how one is begun, previewed and carried out, and the audit of what operators did."""
