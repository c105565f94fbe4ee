//! Files of the kernel that are not as a kernel makes them: an agent starts, joins, and runs jobs.

mod fixture;

use std::process::Command;

use bedplate_control::wire::*;
use fixture::{Cluster, gang};

/// What lies in the place of some files of `/proc`.
const ODD: [(&str, &str); 4] = [
    ("garbage", "printf '\\000 garbage -1 999999999999999999999999 nan' > odd"),
    ("a terabyte", "truncate -s 1T odd"),
    ("a pipe", "mkfifo odd"),
    ("nothing", ": > odd"),
];

#[test]
fn an_agent_works_whatever_lies_in_proc_and_sys() {
    if !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        return println!("SKIPPED: this host does not permit mount namespaces");
    }
    for (number, (name, make)) in (1..).zip(ODD) {
        let mut cluster = Cluster::without_agents();
        let folder = cluster.state.display();
        let files = "/proc/meminfo /proc/vmstat /proc/cpuinfo /proc/loadavg /proc/sys/kernel/pid_max";
        cluster.surroundings = Some(format!(
            "cd {folder}; {make}; for file in {files}; do mount --bind odd $file; done; mount -t tmpfs none /sys"
        ));
        cluster.start_agent("n1", &[]);
        assert_eq!(cluster.hello("n1").host.memory_mib, 0, "{name}: what cannot be read is not known");
        let launches = gang(number, &["n1"], "echo well");
        cluster.start_gang(&launches);
        cluster.released(launches[0].run, "n1");
        assert_eq!(cluster.log(launches[0].run, "n1", 0, LogStream::Stdout), "well\n", "{name}");
    }
}
