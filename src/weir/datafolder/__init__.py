"""Operations on a whole data folder: survey, verify, salvage, backup and restore."""
