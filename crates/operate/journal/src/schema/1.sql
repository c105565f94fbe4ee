-- Times are milliseconds since 1970 in columns that end in _ms; the views show them as dates.

-- The texts of jobs, apart from the jobs so that lists need not read them. Jobs of an array share one.
CREATE TABLE texts (
    id   INTEGER PRIMARY KEY,
    text TEXT NOT NULL
) STRICT;

CREATE TABLE jobs (
    id              INTEGER PRIMARY KEY,
    array_id        INTEGER,
    array_index     INTEGER,
    user            TEXT NOT NULL,
    name            TEXT NOT NULL,
    account         TEXT NOT NULL,
    submitted_ms    INTEGER NOT NULL,
    key             TEXT,
    text_id         INTEGER NOT NULL REFERENCES texts (id),
    state           TEXT NOT NULL,
    is_held         INTEGER NOT NULL,
    runs            INTEGER NOT NULL,
    checkpoint_step INTEGER,
    checkpoint_path TEXT,
    started_ms      INTEGER,
    ended_ms        INTEGER,
    exit_status     INTEGER,
    reason          TEXT
) STRICT;
CREATE INDEX jobs_live ON jobs (id) WHERE state IN ('waiting', 'starting', 'running', 'stopping', 'suspended');
CREATE INDEX jobs_by_user ON jobs (user, id);
CREATE INDEX jobs_by_account ON jobs (account, id);

-- One attempt to run a job.
CREATE TABLE runs (
    job           INTEGER NOT NULL REFERENCES jobs (id),
    number        INTEGER NOT NULL,
    phase         TEXT NOT NULL,
    gpus          INTEGER NOT NULL,
    started_ms    INTEGER NOT NULL,
    running_ms    INTEGER,
    ended_ms      INTEGER,
    reason        TEXT,
    cpu_ms        INTEGER NOT NULL,
    energy_joules INTEGER,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX runs_by_end ON runs (ended_ms);

-- What a run holds of each of its nodes; bit i of devices stands for device i.
CREATE TABLE run_nodes (
    job     INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    place   INTEGER NOT NULL,
    node    TEXT NOT NULL,
    role    INTEGER NOT NULL,
    devices INTEGER NOT NULL,
    gpus    INTEGER NOT NULL,
    PRIMARY KEY (job, number, place),
    FOREIGN KEY (job, number) REFERENCES runs (job, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE nodes (
    name        TEXT PRIMARY KEY,
    drained     TEXT,
    address     TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    losses_ms   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- GPU time for fair share, faded as of at_ms.
CREATE TABLE shares (
    account TEXT NOT NULL,
    user    TEXT NOT NULL,
    gpu_ms  INTEGER NOT NULL,
    faded   REAL NOT NULL,
    at_ms   INTEGER NOT NULL,
    PRIMARY KEY (account, user)
) STRICT, WITHOUT ROWID;

CREATE TABLE notes (
    id    INTEGER PRIMARY KEY,
    at_ms INTEGER NOT NULL,
    job   INTEGER,
    node  TEXT,
    text  TEXT NOT NULL
) STRICT;
CREATE INDEX notes_by_job ON notes (job, id) WHERE job IS NOT NULL;
CREATE INDEX notes_by_node ON notes (node, id) WHERE node IS NOT NULL;

-- One row: the latest time in any record ever committed.
CREATE TABLE clock (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    latest_ms INTEGER NOT NULL
) STRICT;
INSERT INTO clock VALUES (1, 0);

CREATE TABLE tokens (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    hash        BLOB NOT NULL UNIQUE,
    role        TEXT NOT NULL,
    user        TEXT NOT NULL,
    label       TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    expires_ms  INTEGER,
    is_one_time INTEGER NOT NULL,
    used_ms     INTEGER
) STRICT;

CREATE TABLE settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- For people. A run that has not ended counts until now.

CREATE VIEW job_history AS
SELECT id, user, account, name, state, is_held, runs,
       datetime(submitted_ms / 1000, 'unixepoch') AS submitted,
       datetime(started_ms / 1000, 'unixepoch') AS started,
       datetime(ended_ms / 1000, 'unixepoch') AS ended,
       exit_status, reason
FROM jobs;

CREATE VIEW run_history AS
SELECT runs.job, runs.number, jobs.user, jobs.account, jobs.name, runs.phase, runs.gpus,
       (SELECT group_concat(node, ',') FROM run_nodes AS held
        WHERE held.job = runs.job AND held.number = runs.number) AS nodes,
       datetime(runs.started_ms / 1000, 'unixepoch') AS started,
       datetime(runs.ended_ms / 1000, 'unixepoch') AS ended,
       runs.gpus * (coalesce(runs.ended_ms, unixepoch('subsec') * 1000) - runs.started_ms) / 3600000.0 AS gpu_hours,
       runs.energy_joules / 3600000.0 AS energy_kwh,
       runs.reason
FROM runs JOIN jobs ON jobs.id = runs.job;

CREATE VIEW run_devices AS
WITH RECURSIVE bit (device) AS (SELECT 0 UNION ALL SELECT device + 1 FROM bit WHERE device < 63)
SELECT job, number, node, device FROM run_nodes, bit WHERE (devices >> device) & 1;

CREATE VIEW usage_by_user AS
SELECT user, count(*) AS runs, sum(gpu_hours) AS gpu_hours, sum(energy_kwh) AS energy_kwh
FROM run_history GROUP BY user;

CREATE VIEW usage_by_account AS
SELECT account, count(*) AS runs, sum(gpu_hours) AS gpu_hours, sum(energy_kwh) AS energy_kwh
FROM run_history GROUP BY account;

-- A run that spans several days counts in each of them, with its energy spread evenly over its time.
CREATE VIEW usage_by_day AS
WITH RECURSIVE
whole (job, number, gpus, from_ms, to_ms, energy_joules) AS (
    SELECT job, number, gpus, started_ms,
           max(started_ms, coalesce(ended_ms, CAST(unixepoch('subsec') * 1000 AS INTEGER))), energy_joules
    FROM runs
),
piece (job, number, gpus, from_ms, to_ms, energy_joules, day) AS (
    SELECT *, from_ms / 86400000 FROM whole
    UNION ALL
    SELECT job, number, gpus, from_ms, to_ms, energy_joules, day + 1 FROM piece
    WHERE (day + 1) * 86400000 < to_ms
),
part AS (
    SELECT *, min(to_ms, (day + 1) * 86400000) - max(from_ms, day * 86400000) AS lasted_ms FROM piece
)
SELECT date(day * 86400, 'unixepoch') AS day, count(*) AS runs,
       sum(gpus * lasted_ms) / 3600000.0 AS gpu_hours,
       sum(CASE WHEN to_ms > from_ms THEN energy_joules * 1.0 * lasted_ms / (to_ms - from_ms)
                ELSE energy_joules END) / 3600000.0 AS energy_kwh
FROM part GROUP BY day;
