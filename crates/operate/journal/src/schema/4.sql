-- What an operator knows of a node's findings, until then by the node's own clock; a restart does not contradict him.
ALTER TABLE nodes ADD COLUMN acknowledged_ms INTEGER NOT NULL DEFAULT 0;

-- When a finding took the node out of service.
ALTER TABLE nodes ADD COLUMN found_out_ms INTEGER;
