//! Files that a process may have open: every connection is one.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Allows this process as many files as the system permits.
pub fn raise_file_limit() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Without it fewer connections are possible.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
