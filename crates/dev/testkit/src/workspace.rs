//! The workspace as cargo sees it: packages, their folders, their dependencies.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A package of the workspace. Its folder is `crates/<layer>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// As cargo knows it: `bedplate-units`.
    pub package: String,
    pub layer: String,
    /// The folder's name: `units`.
    pub name: String,
    pub folder: PathBuf,
    pub dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    pub package: String,
    pub used: Use,
}

/// What a dependency is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Code,
    Tests,
    Build,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    pub packages: Vec<Package>,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    // Where the test runs, which cargo says, and not where this crate was compiled: clones may share a target directory.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).ancestors().nth(3).expect("the crate is in crates/dev/testkit").to_owned()
}

impl Workspace {
    /// Reads the workspace from cargo.
    pub fn load() -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
            .current_dir(root())
            .output()
            .expect("cargo runs, since it runs this test");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
        Self::from_metadata(&metadata)
    }

    /// From the JSON of `cargo metadata`.
    pub fn from_metadata(metadata: &Value) -> Self {
        let packages = metadata["packages"].as_array().expect("metadata lists packages");
        Self { packages: packages.iter().map(package).collect() }
    }

    pub fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.package == name)
    }
}

fn package(value: &Value) -> Package {
    let manifest = Path::new(value["manifest_path"].as_str().unwrap_or_default());
    let folder = manifest.parent().unwrap_or(Path::new("")).to_owned();
    let part = |path: Option<&Path>| {
        path.and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default().to_owned()
    };
    let dependencies = value["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    Package {
        package: value["name"].as_str().unwrap_or_default().to_owned(),
        layer: part(folder.parent()),
        name: part(Some(&folder)),
        folder,
        dependencies: dependencies.iter().map(dependency).collect(),
    }
}

fn dependency(value: &Value) -> Dependency {
    Dependency {
        package: value["name"].as_str().unwrap_or_default().to_owned(),
        used: match value["kind"].as_str() {
            Some("dev") => Use::Tests,
            Some("build") => Use::Build,
            _ => Use::Code,
        },
    }
}
