-- Of the first task of an array whose tasks are recorded in slices: the number of the first that is still to come. Empty once all are there.
ALTER TABLE jobs ADD COLUMN arriving INTEGER;
CREATE INDEX jobs_arriving ON jobs (id) WHERE arriving IS NOT NULL;
