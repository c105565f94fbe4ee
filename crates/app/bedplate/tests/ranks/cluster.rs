//! Runs that are jobs of the embedded cluster, which replaces nodes that are lost.

use std::fs;
use std::process::Output;

use bedplate_testkit::wait_to_see;
use serde_json::Value;

use crate::place::{Place, assert_same};

/// A cluster beside the folder of a run; always taken down.
struct Cluster<'a>(&'a Place);

impl<'a> Cluster<'a> {
    fn up(place: &'a Place, nodes: &str) -> Self {
        let cluster = Self(place);
        cluster.tell(&["up", "--nodes", nodes, "--like", "p5.48xlarge"]);
        cluster
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.0.command(arguments).env("BEDPLATE_STATE", self.0.0.join("state")).output().unwrap()
    }

    fn tell(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Trains as a job that survives; `more` are options of `submit`.
    fn train(&self, output: &str, steps: u64, layout: &str, more: &[&str]) -> String {
        // The configuration is written as a side effect.
        drop(self.0.train(output, steps, &[]));
        let (program, config) = (env!("CARGO_BIN_EXE_bedplate"), format!("{output}.toml"));
        let command = [program, "train", &config, "--quiet", "--layout", layout];
        let submit = ["submit", "--gpus-per-node", "8", "--no-kill"];
        let words: Vec<&str> = submit.iter().chain(more).chain(&["--"]).chain(&command).copied().collect();
        self.tell(&words).trim().to_owned()
    }

    fn nodes_of(&self, job: &str) -> Vec<String> {
        let shown: Value = serde_json::from_str(&self.tell(&["--json", "job", "show", job])).unwrap();
        serde_json::from_value(shown["nodes"].clone()).unwrap()
    }

    fn end_of(&self, job: &str) -> Value {
        let show = || serde_json::from_str(&self.tell(&["--json", "job", "show", job])).unwrap();
        let has_ended =
            |shown: &Value| ["succeeded", "failed", "cancelled"].iter().any(|end| shown["state"] == *end);
        wait_to_see("the job ends", show, has_ended)
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        self.run(&["down", "--force"]);
    }
}

/// How many ranks made each step, without repetitions.
fn worlds(place: &Place, output: &str) -> Vec<u64> {
    let mut found: Vec<u64> =
        place.lines(output).iter().filter_map(|line| line["ranks"]["count"].as_u64()).collect();
    found.dedup();
    found
}

#[test]
fn a_job_that_loses_a_node_loses_no_step_and_another_node_joins() {
    let place = Place::new("swap");
    let undisturbed = place.finish("alone", 400, &["--ranks", "3", "--layout", "dp3.zero3"]);
    let cluster = Cluster::up(&place, "4");
    let job = cluster.train("job", 400, "dp3.zero3", &["--nodes", "3"]);
    place.wait_for_step("job", 20);
    cluster.tell(&["chaos", "kill-node", &cluster.nodes_of(&job)[1]]);
    let end = cluster.end_of(&job);
    assert_eq!(end["state"], "succeeded", "{end:#}");
    assert_same(&undisturbed, &place.losses("job"), 1e-5);
    assert!(worlds(&place, "job").starts_with(&[3, 2]), "{:?}", worlds(&place, "job"));
    let checkpoints = fs::read_dir(place.0.join("job/checkpoints")).unwrap().count();
    assert_eq!(checkpoints, 1, "only the last state was written, so none was read");
}

#[test]
fn an_elastic_job_goes_on_smaller_where_no_node_is_free() {
    let place = Place::new("smaller");
    let undisturbed = place.finish("alone", 120, &["--ranks", "3", "--layout", "dp3.zero1"]);
    let cluster = Cluster::up(&place, "3");
    drop(place.train("job", 120, &[]));
    let program = env!("CARGO_BIN_EXE_bedplate");
    let text = format!(
        "name = \"elastic\"\nnodes = 3\ngpus_per_node = 8\nsurvive = true\nelastic = {{ min = 1, max = 3 }}\n\
         command = [\"{program}\", \"train\", \"job.toml\", \"--quiet\", \"--layout\", \"dp3.zero1\"]\n"
    );
    fs::write(place.0.join("elastic.toml"), text).unwrap();
    let job = cluster.tell(&["submit", "elastic.toml"]).trim().to_owned();
    place.wait_for_step("job", 20);
    // The first rank goes with its node, and another one speaks for the run.
    cluster.tell(&["chaos", "kill-node", &cluster.nodes_of(&job)[0]]);
    let end = cluster.end_of(&job);
    assert_eq!(end["state"], "succeeded", "{end:#}");
    // The node may be back before the end, and the gang whole again.
    assert!(worlds(&place, "job").starts_with(&[3, 2]), "{:?}", worlds(&place, "job"));
    assert_same(&undisturbed, &place.losses("job"), 1e-5);
}

#[test]
fn a_killed_rank_of_a_job_starts_again_on_its_node_and_joins() {
    let place = Place::new("rank");
    let undisturbed = place.finish("alone", 400, &["--ranks", "2", "--layout", "dp2"]);
    let cluster = Cluster::up(&place, "2");
    let job = cluster.train("job", 400, "dp2", &["--nodes", "2"]);
    place.wait_for_step("job", 20);
    cluster.tell(&["chaos", "kill-rank", &job, "--rank", "1"]);
    let end = cluster.end_of(&job);
    assert_eq!(end["state"], "succeeded", "{end:#}");
    assert_same(&undisturbed, &place.losses("job"), 1e-5);
}
