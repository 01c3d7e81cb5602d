"""What happened in each topic over the last two days: counted by every process, added up in the store."""
