CREATE TABLE deleted_totals (
	cluster VARCHAR NOT NULL,
	project VARCHAR NOT NULL,
	host VARCHAR NOT NULL,
	provenance VARCHAR NOT NULL,
	runs INTEGER NOT NULL,
	energy_j DOUBLE NOT NULL,
	facility_j DOUBLE NOT NULL,
	carbon_g DOUBLE NOT NULL,
	PRIMARY KEY (cluster, project, host, provenance)
);
CREATE TABLE experiments (
	experiment_id VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	status VARCHAR NOT NULL,
	created_wall_s DOUBLE NOT NULL,
	fingerprint VARCHAR NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (experiment_id)
);
CREATE INDEX experiments_by_fingerprint ON experiments (fingerprint);
CREATE TABLE jobs (
	job_key VARCHAR NOT NULL,
	first_run_id VARCHAR NOT NULL,
	job_id VARCHAR,
	name VARCHAR NOT NULL,
	status VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	host VARCHAR NOT NULL,
	user_name VARCHAR NOT NULL,
	nodes INTEGER NOT NULL,
	nodes_expected INTEGER,
	runs INTEGER NOT NULL,
	started_wall_s DOUBLE NOT NULL,
	duration_s DOUBLE,
	energy_j DOUBLE,
	uncertainty_j DOUBLE,
	counted BOOLEAN NOT NULL,
	in_totals BOOLEAN NOT NULL,
	quarantined INTEGER NOT NULL,
	cluster VARCHAR NOT NULL,
	partition VARCHAR NOT NULL,
	project VARCHAR NOT NULL,
	"exclusive" BOOLEAN,
	device VARCHAR NOT NULL,
	label VARCHAR NOT NULL,
	insights TEXT NOT NULL,
	provenance VARCHAR NOT NULL,
	complete BOOLEAN NOT NULL,
	facility_j DOUBLE,
	carbon_g DOUBLE,
	PRIMARY KEY (job_key)
);
CREATE INDEX jobs_by_start ON jobs (started_wall_s);
CREATE TABLE meta (
	"key" VARCHAR NOT NULL,
	value TEXT,
	PRIMARY KEY ("key")
);
CREATE TABLE nodes (
	node VARCHAR NOT NULL,
	heard_wall_s DOUBLE NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (node)
);
CREATE TABLE runs (
	run_id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	status VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	host VARCHAR NOT NULL,
	machine_id VARCHAR NOT NULL,
	user_name VARCHAR NOT NULL,
	job_id VARCHAR,
	parent_run_id VARCHAR,
	started_wall_s DOUBLE NOT NULL,
	duration_s DOUBLE,
	energy_j DOUBLE,
	uncertainty_j DOUBLE,
	exit_code INTEGER,
	counted BOOLEAN NOT NULL,
	body TEXT NOT NULL,
	job_key VARCHAR,
	quarantine TEXT,
	clock_offset_s DOUBLE,
	samples_dropped_wall_s DOUBLE,
	levels_dropped_wall_s DOUBLE,
	PRIMARY KEY (run_id)
);
CREATE INDEX runs_by_host ON runs (host);
CREATE INDEX runs_by_job ON runs (job_id);
CREATE INDEX runs_by_job_key ON runs (job_key);
CREATE INDEX runs_by_name ON runs (name);
CREATE INDEX runs_by_start ON runs (started_wall_s);
CREATE TABLE events (
	run_id VARCHAR NOT NULL,
	position INTEGER NOT NULL,
	type VARCHAR NOT NULL,
	time_s DOUBLE,
	body TEXT NOT NULL,
	PRIMARY KEY (run_id, position),
	FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
CREATE TABLE run_facts (
	run_id VARCHAR NOT NULL,
	cluster VARCHAR NOT NULL,
	partition VARCHAR NOT NULL,
	project VARCHAR NOT NULL,
	"exclusive" BOOLEAN,
	device VARCHAR NOT NULL,
	label VARCHAR NOT NULL,
	insights TEXT NOT NULL,
	provenance VARCHAR NOT NULL,
	complete BOOLEAN NOT NULL,
	facility_j DOUBLE,
	carbon_g DOUBLE,
	efficiency DOUBLE,
	job_nodes INTEGER,
	PRIMARY KEY (run_id),
	FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
CREATE INDEX run_facts_by_cluster ON run_facts (cluster);
CREATE INDEX run_facts_by_project ON run_facts (project);
CREATE TABLE run_tags (
	run_id VARCHAR NOT NULL,
	"key" VARCHAR NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY (run_id, "key"),
	FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
CREATE TABLE sample_chunks (
	run_id VARCHAR NOT NULL,
	feed INTEGER NOT NULL,
	part INTEGER NOT NULL,
	series INTEGER NOT NULL,
	begin_s DOUBLE NOT NULL,
	end_s DOUBLE NOT NULL,
	count INTEGER NOT NULL,
	payload BLOB NOT NULL,
	PRIMARY KEY (run_id, feed, part, series),
	FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
CREATE TABLE sample_levels (
	run_id VARCHAR NOT NULL,
	feed INTEGER NOT NULL,
	series INTEGER NOT NULL,
	level_s INTEGER NOT NULL,
	part INTEGER NOT NULL,
	begin_s DOUBLE NOT NULL,
	end_s DOUBLE NOT NULL,
	count INTEGER NOT NULL,
	payload BLOB NOT NULL,
	PRIMARY KEY (run_id, feed, series, level_s, part),
	FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
CREATE TABLE steps (
	run_id VARCHAR NOT NULL,
	position INTEGER NOT NULL,
	kind VARCHAR NOT NULL,
	step_index INTEGER NOT NULL,
	begin_s DOUBLE NOT NULL,
	end_s DOUBLE NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (run_id, position),
	FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
CREATE TABLE trials (
	experiment_id VARCHAR NOT NULL,
	"key" VARCHAR NOT NULL,
	number INTEGER NOT NULL,
	status VARCHAR NOT NULL,
	run_id VARCHAR,
	body TEXT NOT NULL,
	PRIMARY KEY (experiment_id, "key"),
	FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id) ON DELETE CASCADE
);
CREATE TABLE windows (
	run_id VARCHAR NOT NULL,
	position INTEGER NOT NULL,
	window_id INTEGER NOT NULL,
	parent_id INTEGER,
	name VARCHAR NOT NULL,
	begin_s DOUBLE NOT NULL,
	end_s DOUBLE NOT NULL,
	energy_j DOUBLE,
	body TEXT NOT NULL,
	PRIMARY KEY (run_id, position),
	FOREIGN KEY(run_id) REFERENCES runs (run_id) ON DELETE CASCADE
);
INSERT INTO meta (key, value) VALUES ('schema_version', '3');
