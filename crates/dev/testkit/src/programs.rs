//! Programs of the workspace that a test needs besides the one of its own package.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program `name` beside `own`, which cargo built for this test. Where it is missing, cargo builds it: a test of one
/// package alone does not build the programs of others.
pub fn beside(own: &str, name: &str) -> PathBuf {
    let folder = Path::new(own).parent().expect("a program is in a folder");
    let program = folder.join(name);
    if !program.is_file() {
        let target = folder.parent().expect("the folder of a profile is in the target directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--package", name, "--target-dir"]).arg(target).current_dir(crate::root());
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(
            cargo.status().expect("cargo runs, since it runs this test").success(),
            "{name} is not built"
        );
    }
    program
}
