"""Operations that the broker keeps: begins, previews and carries them out; the audit of what operators did."""
