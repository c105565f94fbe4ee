-- What the ranks of a run reported about their training steps, as JSON: how many, their mean, the latest.
ALTER TABLE runs ADD COLUMN steps TEXT;

-- Mean seconds of a step and their number, beside what was run.
CREATE VIEW step_history AS
SELECT runs.job, runs.number, jobs.user, jobs.name, runs.gpus,
       runs.steps ->> '$.steps' AS steps, runs.steps ->> '$.mean_s' AS mean_s, runs.steps ->> '$.mean' AS mean
FROM runs JOIN jobs ON jobs.id = runs.job WHERE runs.steps IS NOT NULL;

-- The reason with its code and fields, as JSON; `reason` has the sentence.
ALTER TABLE jobs ADD COLUMN why TEXT;
ALTER TABLE runs ADD COLUMN why TEXT;
