//! Files that a job can write to.
//!
//! By the time such a path is opened it may be a FIFO, a device, a link to someone else's file, or gone. Opening must
//! not wait and must not lead elsewhere, and only a regular file is read.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Whether the last part of a path may be a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkPolicy {
    /// In our own folders: there a link is an attempt to read or change something else.
    Refuse,
    /// The job named the path itself.
    Follow,
}

/// Opens a regular file to read. Anything else is refused, at once.
pub(crate) fn open(path: &Path, links: LinkPolicy) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path, links)
}

/// The same with other rights.
pub(crate) fn open_with(options: &mut OpenOptions, path: &Path, links: LinkPolicy) -> io::Result<File> {
    let no_follow = if links == LinkPolicy::Refuse { libc::O_NOFOLLOW } else { 0 };
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | no_follow).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// The whole of a regular file that has at most `most_bytes`.
pub(crate) fn read(path: &Path, links: LinkPolicy, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, links)?.take(most_bytes + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= most_bytes {
        true => Ok(bytes),
        false => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn pipes_devices_folders_and_links_are_refused_at_once() {
        let folder = std::env::temp_dir().join(format!("bedplate-untrusted-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (pipe, link, real) = (folder.join("pipe"), folder.join("link"), folder.join("real"));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        fs::write(&real, "text").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for path in [&pipe, &folder, Path::new("/dev/zero")] {
            assert!(open(path, LinkPolicy::Follow).is_err(), "{}", path.display());
        }
        assert!(open(&link, LinkPolicy::Refuse).is_err());
        assert!(open(&link, LinkPolicy::Follow).is_ok() && open(&real, LinkPolicy::Refuse).is_ok());
        fs::remove_dir_all(folder).unwrap();
    }
}
