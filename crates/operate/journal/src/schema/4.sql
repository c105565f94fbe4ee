-- Runs whose ranks go on while nodes come and go: the run in which the ranks first met and the port, and for each node that stayed or
-- came later the run by which its agent knows it, and its first rank. Empty where all nodes began together.
ALTER TABLE runs ADD COLUMN began INTEGER;
ALTER TABLE runs ADD COLUMN master_port INTEGER;
ALTER TABLE run_nodes ADD COLUMN joined INTEGER;
ALTER TABLE run_nodes ADD COLUMN first_rank INTEGER;

-- Findings of a node until then, by its own clock, are known to an operator: a restart does not bring them up again.
ALTER TABLE nodes ADD COLUMN acknowledged_ms INTEGER NOT NULL DEFAULT 0;

-- When a finding took the node out of service.
ALTER TABLE nodes ADD COLUMN found_out_ms INTEGER;
