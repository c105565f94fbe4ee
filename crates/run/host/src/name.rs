//! What this host is called.

/// The name that the kernel has for it.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|_| "localhost".to_owned())
}
