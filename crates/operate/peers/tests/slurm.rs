//! A real Slurm starts with everything, and leaves nothing behind.

use bedplate_peers::{Slurm, SlurmShape};

#[test]
fn a_slurm_with_accounting_and_rest_starts_and_leaves_nothing() {
    let shape = SlurmShape { nodes: 2, accounting: true, rest: true, ..SlurmShape::default() };
    let slurm = match Slurm::start(&shape) {
        Ok(slurm) => slurm,
        Err(why) => {
            assert!(shape.missing().is_some(), "{why}");
            return println!("SKIPPED: a real Slurm with accounting: {why}");
        }
    };
    assert_eq!(slurm.ask("sinfo", &["-h", "-p", "main", "-o", "%D %G"]), "2 gpu:h100:8(S:0-1)");
    let accounts = slurm.ask("sacctmgr", &["-n", "-P", "list", "account", "format=account"]);
    assert!(accounts.lines().any(|account| account == "research"), "{accounts}");
    assert!(slurm.token("root").split('.').count() == 3, "a JWT has three parts");
    let root = slurm.root().to_owned();
    drop(slurm);
    assert!(!root.exists());
    assert_eq!(processes_of(&root.display().to_string()), Vec::<String>::new());
}

/// Command lines that name a folder.
fn processes_of(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("there is one").flatten();
    let lines = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(folder)).collect()
}
