//! Our reading of Slurm's notation against Slurm's own, where `scontrol` is installed.

use std::process::Command;

use bedplate_topology::{compress_hostlist, expand_hostlist};

/// What `scontrol show WHAT LIST` prints; none where it refuses.
fn scontrol(what: &str, list: &str, configuration: &std::path::Path) -> Option<String> {
    let output = Command::new("scontrol")
        .args(["show", what, list])
        .env("SLURM_CONF", configuration)
        .output()
        .expect("scontrol runs: it was found before");
    let text = String::from_utf8(output.stdout).expect("names are ASCII");
    (output.status.success() && output.stderr.is_empty()).then(|| text.trim_end().to_owned())
}

#[test]
fn lists_agree_with_scontrol() {
    if Command::new("scontrol").arg("--version").output().is_err() {
        println!("SKIPPED: scontrol is not installed");
        return;
    }
    let folder = std::env::temp_dir().join(format!("bedplate-topology-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let configuration = folder.join("slurm.conf");
    std::fs::write(&configuration, "ClusterName=test\nSlurmctldHost=localhost\n").unwrap();
    let lists = [
        "n[01-04,07]",
        "r[0-1]n[0-1]",
        "n[1-03]",
        "n[09-010]",
        "n[08-11]",
        "n[1-2][3-4]",
        "login,n[1-3],gpu-[001-003]",
        "n3,n1,n2",
        "n1,n01",
        "n099,n100,n0101",
        "ip-10-0-1-[1-9]",
        "rack[01-02]node[1-8]",
        "[1-3]",
        "n[1-65536]",
        "n[3-1]",
        "n[]",
        "n[a-c]",
        "n[1,]",
    ];
    for list in lists {
        let theirs = scontrol("hostnames", list, &configuration);
        let ours = expand_hostlist(list).ok();
        assert_eq!(ours.as_ref().map(|names| names.join("\n")), theirs, "{list}");
        let Some(names) = ours else { continue };
        let compressed = compress_hostlist(names.iter().map(String::as_str));
        assert_eq!(scontrol("hostnames", &compressed, &configuration), theirs, "{list}");
        // More names than this do not fit on a command line.
        if names.len() < 1000 {
            let theirs = scontrol("hostlist", &names.join(","), &configuration);
            assert_eq!(Some(compressed), theirs, "{list}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
