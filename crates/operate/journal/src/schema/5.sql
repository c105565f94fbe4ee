-- What all commits amount to: how many, their records, when, the last job, the link before and this one, and for each table its rows and the
-- sum of their hashes. It is in the row that every commit changes anyway. The newest is in journal.mark too.
ALTER TABLE clock ADD COLUMN chain TEXT;
