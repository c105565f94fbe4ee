-- Jobs that have ended are not kept in memory: keys and arrays are looked up here, and the oldest jobs are pruned.
CREATE INDEX jobs_by_key ON jobs (key) WHERE key IS NOT NULL;
CREATE INDEX jobs_by_array ON jobs (array_id, id) WHERE array_id IS NOT NULL;
CREATE INDEX jobs_by_end ON jobs (ended_ms) WHERE ended_ms IS NOT NULL;
CREATE INDEX jobs_by_text ON jobs (text_id);
CREATE INDEX notes_of_nodes ON notes (at_ms) WHERE job IS NULL;

-- What a job's failures are held against it, as JSON: restarts without progress, and where it failed.
ALTER TABLE jobs ADD COLUMN charges TEXT;

-- Why a node takes no work, with its code and fields, as JSON; `drained` has the sentence.
ALTER TABLE nodes ADD COLUMN why TEXT;
