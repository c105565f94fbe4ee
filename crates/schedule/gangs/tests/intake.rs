//! Job files become requests with their names resolved.

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_gangs::*;
use bedplate_job::Job;
use bedplate_topology::{Cluster, Format, ImportOptions, import};

fn cluster() -> Cluster {
    let source = Source::new("spec", "p5.48xlarge:4");
    import(Format::Spec, &[source], &ImportOptions::default(), &Catalog::builtin()).expect("a sound spec")
}

fn request(lines: &str) -> Result<GangRequest, Never> {
    let text = format!("name = 'a'\ncommand = ['b']\n{lines}");
    let job = Job::from_toml(&text, "job.toml").expect("a sound job");
    GangRequest::from_job(JobId(1), &job, UserId(0), &cluster(), &Settings::default())
}

#[test]
fn priority_share_and_size_reach_the_scheduler() {
    let asked = request("priority = -7\ngpu_share = 0.25\n").unwrap();
    assert_eq!((asked.site_priority, asked.roles[0].gpu_share, asked.gpus()), (-7, Some(250), 1));
    let whole = request("gpu_share = 1.0\n").unwrap();
    assert_eq!((whole.roles[0].gpu_share, whole.gpus()), (None, 1));
    let gang = request("nodes = 4\ntasks_per_node = 8\ncpus_per_task = 12\ngpus_per_node = 8\n").unwrap();
    assert_eq!((gang.nodes(), gang.gpus(), gang.roles[0].per_node.cpus), (4, 32, 96));
}

#[test]
fn what_can_never_run_is_refused_with_its_reason() {
    let reason = |lines| format!("{:?}", request(lines).unwrap_err());
    assert!(reason("gpu_share = 0.5\nnodes = 2\n").contains("shares a GPU"));
    assert!(reason("partition = 'mian'\n").contains("nearest: Some(\"main\")"));
    assert!(reason("gpus_per_node = 1\naccelerator = 'b300'\n").contains("accelerator"));
}
