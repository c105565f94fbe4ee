//! Every command that talks to a cluster, on a real Slurm through a context.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use bedplate_http::blocking::fetch;
use bedplate_peers::{Slurm, SlurmShape};
use bedplate_testkit::wait_to_see;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");

/// A Slurm, and a user who works in a folder of it.
struct Site {
    slurm: Slurm,
    token: String,
}

impl Site {
    fn folder(&self) -> PathBuf {
        self.slurm.root().join("home")
    }

    fn run(&self, words: &str) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(words.split_whitespace()).current_dir(self.folder());
        command.env("BEDPLATE_CONTEXTS", self.folder().join("contexts.toml")).env_remove("COLUMNS");
        command.env_remove("SLURM_CONF").env("SLURM_JWT", &self.token);
        let output = command.output().expect("the program was built before its tests");
        let all = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(!String::from_utf8_lossy(&all).contains(&self.token), "a token is never shown");
        output
    }

    /// Standard output of a command that succeeds.
    fn tell(&self, words: &str) -> String {
        let output = self.run(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{words}\n{}\n{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.tell(&format!("--json {words}"))).expect("it prints one document")
    }

    /// The code of a command that fails.
    fn refused(&self, words: &str) -> String {
        let output = self.run(&format!("--json {words}"));
        assert!(!output.status.success(), "{words}");
        let told = [&output.stdout[..], &output.stderr[..]].concat();
        let told = String::from_utf8_lossy(&told).into_owned();
        let code = told.split("\"code\": \"").nth(1).and_then(|rest| rest.split('"').next());
        code.unwrap_or_else(|| panic!("{words}: {told}")).to_owned()
    }

    fn until(&self, words: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        wait_to_see(words, || self.json(words), is_so)
    }
}

#[test]
fn every_command_works_on_a_slurm_by_rest_and_by_commands() {
    let shape = SlurmShape {
        nodes: 4,
        per_leaf: Some(2),
        accounting: true,
        rest: true,
        requeue_pause_s: 5,
        ..SlurmShape::default()
    };
    let slurm = match Slurm::start(&shape) {
        Ok(slurm) => slurm,
        Err(why) => {
            assert!(shape.missing().is_some(), "{why}");
            return println!("SKIPPED: commands on a real Slurm: {why}");
        }
    };
    let user = Command::new("id").arg("-un").output().expect("every system has it").stdout;
    let token = slurm.token(String::from_utf8_lossy(&user).trim());
    let site = Site { slurm, token };
    fs::create_dir_all(site.folder()).expect("the folder of a Slurm is its starter's");
    contexts_are_tried_when_they_are_added(&site);
    for context in ["commands", "token"] {
        jobs_and_nodes(&site, context);
    }
    the_odd_node_is_found_by_jobs(&site);
    nodes_without_the_program_are_told(&site);
    a_finding_drains_its_node(&site);
    a_plan_goes_with_its_job(&site);
    the_past_is_used_and_replayed(&site);
}

fn contexts_are_tried_when_they_are_added(site: &Site) {
    let configuration = site.slurm.configuration_path().display().to_string();
    let (socket, url) = (site.slurm.rest_socket().display().to_string(), site.slurm.rest_url());
    assert_eq!(site.refused("context add nowhere slurm --slurm-conf /no/such/slurm.conf"), "slurm/no-way");
    let said = site.run(&format!("context add commands slurm --slurm-conf {configuration}")).stderr;
    assert!(String::from_utf8_lossy(&said).contains("Slurm's commands: works, Slurm"));
    let said = site
        .run(&format!("context add socket slurm --rest unix:{socket} --slurm-conf {configuration}"))
        .stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains(&format!("slurmrestd at unix:{socket}: works, Slurm")), "{said}");
    site.tell(&format!("context add token slurm --rest {url} --slurm-conf {configuration}"));
    let file = fs::read_to_string(site.folder().join("contexts.toml")).expect("it was written");
    assert!(!file.contains(&site.token), "a token that expires is not kept");
    assert_eq!(site.json("context list")["contexts"].as_array().map(Vec::len), Some(3));
    assert_eq!(site.refused("token list --context socket"), "context/other-kind");
}

fn jobs_and_nodes(site: &Site, context: &str) {
    let on = format!("--context {context}");
    let job = site.tell(&format!("submit {on} --nodes 2 --gpus-per-node 8 --time 10 -- sleep 600"));
    let job = job.trim();
    site.until(&format!("job show {job} {on}"), |shown| shown["state"] == "running");
    let listed = site.json(&format!("queue {on} --state running"));
    assert!(listed["jobs"].as_array().is_some_and(|jobs| jobs.iter().any(|listed| listed["id"] == job)));
    let large = site.tell(&format!("submit {on} --nodes 4 --gpus-per-node 8 --time 10 -- true"));
    let large = large.trim();
    let explained = site.json(&format!("job explain {large} {on}"));
    let remedies = explained["explanation"]["remedies"].as_array().expect("it waits");
    assert!(remedies.iter().any(|remedy| remedy["code"] == "fewer_nodes"), "{explained:#}");
    site.tell(&format!("job hold {large} {on}"));
    site.until(&format!("job show {large} {on}"), |shown| shown["is_held"] == true);
    let why = site.json(&format!("job explain {large} {on}"));
    let code = why["explanation"]["wait"]["code"].as_str();
    assert!(code.is_some_and(|code| code.starts_with("held")), "{why:#}");
    site.tell(&format!("job release {large} {on}"));
    site.tell(&format!("job cancel {large} {on}"));
    assert_eq!(site.refused(&format!("job cancel {large} {on}")), "cluster/refused");
    site.tell(&format!("job requeue {job} {on}"));
    site.until(&format!("job show {job} {on}"), |shown| {
        shown["state"] == "running" && shown["restarts"] == 1
    });
    site.tell(&format!("node drain n4 --reason fan {on}"));
    let node = site.until(&format!("node show n4 {on}"), |node| node["state"] == "drained");
    assert!(node["reason"]["text"].as_str().is_some_and(|text| text.contains("fan")), "{node:#}");
    site.tell(&format!("node resume n4 {on}"));
    site.until(&format!("node show n4 {on}"), |node| node["state"] == "idle");
    assert_eq!(site.json(&format!("node list {on}"))["nodes"].as_array().map(Vec::len), Some(4));
    assert!(site.tell(&format!("top --once {on}")).contains("GPUs 16/32 used"));
    site.tell(&format!("job cancel {job} {on}"));
    let said = site.tell(&format!("submit {on} --nodes 1 --time 10 --follow -- echo said"));
    assert!(said.contains("said"), "{said}");
    let failed = site.run(&format!("submit {on} --nodes 1 --time 10 --wait -- false"));
    assert!(!failed.status.success());
    assert_eq!(site.refused(&format!("job show 999999 {on}")), "cluster/refused");
}

/// A file of the tree that `--root` shows a node as its own.
fn node_file(site: &Site, node: &str, path: &str, text: &str) {
    let path = site.folder().join("roots").join(node).join(path);
    fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder is the test's");
    fs::write(path, text).expect("the folder is the test's");
}

fn check_of<'a>(row: &'a Value, rule: &str) -> &'a Value {
    let checks = row["checks"].as_array().unwrap_or_else(|| panic!("{row:#}"));
    &checks.iter().find(|check| check["rule"] == rule).unwrap_or_else(|| panic!("{row:#}"))["verdict"]
}

/// Each node examines itself in a job of Slurm; a busy one too, and one that is drained is named.
fn the_odd_node_is_found_by_jobs(site: &Site) {
    let limit = |most: &str| format!("Max locked memory         {most:<20} {most:<20} bytes\n");
    for node in ["n1", "n2", "n3", "n4"] {
        node_file(site, node, "proc/sys/kernel/osrelease", "6.1.0\n");
        node_file(site, node, "proc/self/limits", &limit(if node == "n3" { "65536" } else { "unlimited" }));
    }
    site.tell("node drain n4 --reason test --context commands");
    let busy = "submit --context commands --nodelist n2 --nodes 1 --gpus-per-node 8 --mem 1000 --time 10 -- sleep 600";
    let busy = site.tell(busy);
    let busy = busy.trim();
    site.until(&format!("job show {busy} --context commands"), |shown| shown["state"] == "running");
    let root = site.folder().join("roots/%N").display().to_string();
    for context in ["commands", "token"] {
        let words =
            format!("doctor --cluster --context {context} --root {root} --like p5.48xlarge --patience 100");
        let output = site.run(&format!("--json {words}"));
        assert_eq!(output.status.code(), Some(1), "a check fails: {output:?}");
        let told: Value = serde_json::from_slice(&output.stdout).expect("it prints one document");
        let rows = told["nodes"].as_array().expect("it has nodes");
        assert_eq!(rows.len(), 4, "{told:#}");
        assert!(rows[3]["not_examined"].as_str().is_some_and(|why| why.contains("drained")), "{told:#}");
        let limits: Vec<&Value> = rows[..3].iter().map(|row| check_of(row, "limit/locked-memory")).collect();
        assert_eq!(limits, ["pass", "pass", "fail"], "{told:#}");
        // The busy one is not blamed for GPUs that its job could not see.
        assert_eq!(check_of(&rows[1], "gpu/count"), "pass", "{told:#}");
        let odd = told["odd_ones_out"].as_array().expect("there is one");
        let found = odd.iter().find(|it| it["what"] == "locked memory").expect("it differs");
        assert_eq!((&found["most"], &found["odd"][0]["node"]), (&"unlimited".into(), &"n3".into()));
    }
    let words = format!("doctor --cluster --context commands --root {root} --like p5.48xlarge");
    let page = site.run(&words).stdout;
    let page = String::from_utf8_lossy(&page).into_owned();
    assert!(page.contains("locked memory: most have unlimited; n3 has 65536"), "{page}");
    site.tell(&format!("job cancel {busy} --context commands"));
    site.tell("node resume n4 --context commands");
    let left: Vec<_> = fs::read_dir(site.folder().join(".bedplate"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with("doctor"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A program that is nowhere is one error with a remedy; one that a single node lacks is told of that node.
fn nodes_without_the_program_are_told(site: &Site) {
    let words = "doctor --cluster --context commands --program /no/such/bedplate";
    assert_eq!(site.refused(words), "doctor/no-program");
    let said = String::from_utf8_lossy(&site.run(words).stderr).into_owned();
    assert!(said.contains("/no/such/bedplate") && said.contains("--program"), "{said}");
    let script = format!(
        "#!/bin/sh\necho Welcome to the site\n[ \"$SLURMD_NODENAME\" = n2 ] && exit 127\nexec {PROGRAM} \"$@\"\n"
    );
    let program = site.folder().join("on-most-nodes");
    fs::write(&program, script).expect("the folder is the test's");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, executable).expect("the folder is the test's");
    let root = site.folder().join("roots/%N").display().to_string();
    let program = program.display();
    let output = site.run(&format!(
        "--json doctor --cluster --context commands --root {root} --like p5.48xlarge --program {program}"
    ));
    let told: Value = serde_json::from_slice(&output.stdout).expect("it prints one document");
    let why = told["nodes"][1]["not_examined"].as_str().unwrap_or_else(|| panic!("{told:#}"));
    assert_eq!(why, format!("the program {program} is not there"));
    assert_eq!(check_of(&told["nodes"][0], "limit/locked-memory"), "pass", "{told:#}");
}

/// An exporter beside slurmd sees an XID in the kernel log, and Slurm drains the node with the reason.
fn a_finding_drains_its_node(site: &Site) {
    let root = site.folder().join("host");
    fs::create_dir_all(root.join("dev")).expect("the folder of a Slurm is its starter's");
    fs::write(root.join("dev/kmsg"), "").expect("the folder of a Slurm is its starter's");
    let mut command = Command::new(PROGRAM);
    command.args([
        "export",
        "--drain",
        "--context",
        "commands",
        "--node-name",
        "n3",
        "--listen",
        "127.0.0.1:0",
    ]);
    command.arg("--observe-root").arg(&root).current_dir(site.folder());
    command.env("BEDPLATE_CONTEXTS", site.folder().join("contexts.toml")).env_remove("SLURM_CONF");
    let mut exporter = command.stdout(std::process::Stdio::piped()).spawn().expect("the program was built");
    let mut url = String::new();
    let output = exporter.stdout.take().expect("it was asked for");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut url).expect("it says where it is");
    // The log is read from its end on.
    let address = url.trim().trim_start_matches("http://").trim_end_matches("/metrics");
    let scraped = || fetch(address, "/metrics", Duration::from_secs(10), 16 << 20).unwrap_or_default();
    let is_read = |text: &String| {
        let mut lines = text.lines().filter(|line| line.contains("collector=\"kernel-log\""));
        lines.any(|line| line.starts_with("bedplate_collector_up{") && line.ends_with(" 1"))
    };
    wait_to_see("the log is read", scraped, is_read);
    let line = "4,1,1,-;NVRM: Xid (PCI:0000:10:00): 79, pid=1, name=x, GPU has fallen off the bus.\n";
    fs::write(root.join("dev/kmsg"), line).expect("the folder of a Slurm is its starter's");
    let node = site.until("node show n3 --context commands", |node| node["state"] == "drained");
    exporter.kill().expect("it is our child");
    exporter.wait().expect("it is our child");
    assert!(node["reason"]["text"].as_str().is_some_and(|text| text.contains("gpu/xid-79")), "{node:#}");
    site.tell("node resume n3 --context commands");
    site.until("node show n3 --context commands", |node| node["state"] == "idle");
}

fn a_plan_goes_with_its_job(site: &Site) {
    let script = "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=8 --ntasks-per-node=1 --time=10\n\
                  srun sh -c 'echo layout $BEDPLATE_LAYOUT'\n\
                  echo '{\"version\":1,\"report\":\"step\",\"step\":1,\"seconds\":0.5}' >> \"$BEDPLATE_REPORT\"\n";
    fs::write(site.folder().join("planned.sbatch"), script).expect("the folder is the test's");
    let plan = site.json("plan train --model llama-3.1-8b --submit planned.sbatch --context commands");
    assert_eq!(plan["gpus"], 16, "two nodes of the job and not all four");
    let job = plan["submitted"]["id"].as_str().expect("it was submitted").to_owned();
    let shown =
        site.until(&format!("job show {job} --context socket"), |shown| shown["state"] == "succeeded");
    assert_eq!(shown["steps"]["steps"], 1);
    let predicted: f64 =
        ["compute", "memory", "scale_up", "scale_out", "bubble", "optimizer", "storage", "host", "other"]
            .iter()
            .filter_map(|part| shown["predicted"][*part]["exposed_s"].as_f64())
            .sum();
    let planned = plan["step_s"].as_f64().expect("it has one");
    assert!((predicted / planned - 1.0).abs() < 1e-4, "{predicted} {planned}");
    let layout = plan["layout"].as_str().expect("it has one");
    assert!(site.tell(&format!("job logs {job} --context commands")).contains(&format!("layout {layout}\n")));
}

fn the_past_is_used_and_replayed(site: &Site) {
    let cluster = site.json("cluster show context:commands");
    assert_eq!((&cluster["nodes"], &cluster["gpus"]), (&4.into(), &32.into()), "{cluster:#}");
    assert!(cluster["slurm"]["partitions"].as_array().is_some_and(|rows| rows.len() == 2));
    assert!(cluster["slurm"]["shares"].as_array().is_some_and(|rows| !rows.is_empty()));
    for context in ["commands", "socket"] {
        let usage = site.json(&format!("usage --context {context}"));
        assert!(usage["usage"][0]["gpu_hours"].as_f64().is_some_and(|hours| hours > 0.0), "{usage:#}");
        let replayed =
            site.json(&format!("replay jobs --from-slurm --since 1d --context {context} --policy easy"));
        assert!(
            replayed["jobs"].as_u64().or(replayed["trace"]["jobs"].as_u64()).is_some_and(|jobs| jobs >= 6),
            "{replayed:#}"
        );
    }
}
