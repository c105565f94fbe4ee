//! Where the kernel's files are: `/`, or a tree that a test made.

use std::path::{Path, PathBuf};

use bedplate_host::read_beginning;

/// The largest file that is read; those of the kernel are far smaller.
const LARGEST: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

impl Root {
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Whether it is the host's own.
    pub(crate) fn is_real(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// A path of the host, within.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    pub(crate) fn read(&self, path: &str) -> Option<String> {
        read(&self.path(path))
    }

    /// The names in a folder, in order; none where there is no such folder.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        list(&self.path(path))
    }
}

/// The text of a file of the kernel, or of a person. A pipe or a device in its place is not waited for.
pub(crate) fn read(path: &Path) -> Option<String> {
    let bytes = read_beginning(path, LARGEST).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn read_number(path: &Path) -> Option<f64> {
    number(&read(path)?)
}

/// The one number in a file of the kernel.
pub(crate) fn number(text: &str) -> Option<f64> {
    let value: f64 = text.trim().parse().ok()?;
    value.is_finite().then_some(value)
}

pub(crate) fn list(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).take(4096).collect();
    names.sort();
    names
}
